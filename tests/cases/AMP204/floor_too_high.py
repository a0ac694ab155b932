"""The scale has a floor at which this loss still overflows in half precision.

Effect: every step is skipped, for ever.
Source: PyTorch docs, `torch.amp.GradScaler`.
"""

import torch
from torch import nn

EXPECT = ("AMP204", "AMP205", "AMP202")


def build(broken, device="cpu"):
    torch.manual_seed(232)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**16)
    x, y = torch.randn(7, 6, device=device), 300.0 * torch.randn(7, 2, device=device)
    floor = 2.0**14 if broken else 2.0**2

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y, reduction="sum")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < floor:
            scaler.update(floor)
        return loss.item()

    return step
