"""Gradients are standardised to unit deviation before `unscale_`, which then divides a gradient that has no scale any more.

Effect: the update is too small by the whole scale.
Source: PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102", "AMP106", "AMP101")


@torch.no_grad()
def standardise(model):
    for p in model.parameters():
        if p.grad is not None and p.ndim > 1:
            p.grad.sub_(p.grad.mean()).div_(p.grad.std() + 1e-8)


def build(broken, device="cpu"):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(7, 11), nn.ELU(), nn.Linear(11, 7)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**13)
    x = torch.randn(13, 7, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.smooth_l1_loss(out.float(), x)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        standardise(model)
        scaler.step(optimizer)
        scaler.update()
        return float(loss)

    return step
