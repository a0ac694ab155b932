"""Reptile: three updates by a fresh optimizer, then the weights go a third of the way from where they began.

The trap: that the weights move after a skipped third step is the loop's own doing, and not the skipped step's.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1201)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        slow = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                out = model(x)
            loss = nn.functional.mse_loss(out.float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        with torch.no_grad():
            for p, old in zip(model.parameters(), slow, strict=True):
                p.copy_(torch.lerp(old, p, 1 / 3))
        return loss.item()

    return step
