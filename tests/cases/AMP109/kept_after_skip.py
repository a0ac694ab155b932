"""Gradients are cleared only when the step was taken.

Effect: after an overflow the infinite gradients stay and are added to; no step is taken any more.
Source: PyTorch docs, `torch.amp.GradScaler.step`; `torch.optim.Optimizer.zero_grad`.
"""

import torch
from torch import nn

EXPECT = ("AMP109",)


def build(broken, device="cpu"):
    torch.manual_seed(93)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        taken = scaler.get_scale() >= before
        if taken or not broken:
            optimizer.zero_grad()
        return loss.item()

    return step
