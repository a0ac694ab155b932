"""Hooks of the parameters make non-finite gradients finite before they are accumulated.

Effect: overflows are never found; zeros are stepped with and the scale stays too high.
Source: PyTorch docs, `torch.amp.GradScaler.update`.
"""

import torch
from torch import nn

EXPECT = ("AMP202", "AMP201")


def build(broken, device="cpu"):
    torch.manual_seed(211)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    seen = []

    def watch(grad):
        seen.append(bool(grad.isfinite().all()))
        return torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0) if broken else None

    for p in model.parameters():
        p.register_hook(watch)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
