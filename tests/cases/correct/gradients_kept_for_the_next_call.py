"""Gradients are cleared right before the next backward, and read in between for a display.

The trap: gradients that were used are still there when the next call begins.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1038)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        shown = [None if p.grad is None else float(p.grad.abs().mean()) for p in model.parameters()]
        for p in model.parameters():
            p.grad = None
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item(), len(shown)

    return step
