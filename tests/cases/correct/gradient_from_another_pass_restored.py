"""Gradients of a first loss are set aside, those of a second one taken, and both are joined, all at one scale.

The trap: gradients are cleared between backward and step, and assigned by hand.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1039)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        kept = []
        for target in (y, -y):
            with torch.autocast(device, dtype=torch.float16):
                out = model(x)
            loss = nn.functional.mse_loss(out.float(), target)
            scaler.scale(loss).backward()
            kept.append([p.grad for p in model.parameters()])
            optimizer.zero_grad(set_to_none=True)
        for p, a, b in zip(model.parameters(), *kept, strict=True):
            p.grad = 0.7 * a + 0.3 * b
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
