"""Batches whose unscaled norm is too large are thrown away: gradients cleared, no step, `update()` all the same.

The trap: an iteration without `scaler.step`, and gradients cleared after backward.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1005)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        weight = 40.0 if seen["calls"] == 3 else 1.0
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = weight * nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm > 5.0:
            optimizer.zero_grad()
            scaler.update()
            return None
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
