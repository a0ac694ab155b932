"""Gradient norms are logged after the step, with an `unscale_` of their own.

Effect: `unscale_() is being called after step()` is raised in the first call.
Source: PyTorch docs, `torch.amp.GradScaler.unscale_`.
"""

import torch
from torch import nn

EXPECT = ("AMP106",)


def build(broken, device="cpu"):
    torch.manual_seed(45)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(9, 4, device=device), torch.randn(9, 2, device=device)

    def norm():
        return torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        scaler.scale(nn.functional.mse_loss(out.float(), y)).backward()
        if broken:
            scaler.step(optimizer)
            scaler.unscale_(optimizer)
        else:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        value = norm()
        scaler.update()
        return value

    return step
