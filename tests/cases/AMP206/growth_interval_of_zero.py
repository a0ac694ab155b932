"""`growth_interval=0`, meant to switch growth off.

Effect: the tracker never equals the interval, by luck of the implementation; large finite intervals are the way to say it.
Source: PyTorch docs, `torch.amp.GradScaler(growth_interval)`.
"""

import torch
from torch import nn

EXPECT = ("AMP206",)


def build(broken, device="cpu"):
    torch.manual_seed(251)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, 2.0**10, 2.0, 0.5, 0 if broken else 10**9)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

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
