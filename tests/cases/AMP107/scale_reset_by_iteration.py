"""A schedule of the loss scale sets it every third micro-batch, whatever the accumulation window is.

Effect: windows of two straddle the change; their gradients are mixed at two scales.
Source: PyTorch docs, "Gradient accumulation".
"""

import torch
from torch import nn

EXPECT = ("AMP107", "AMP105")


def build(broken, device="cpu"):
    torch.manual_seed(72)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    seen = {"micro": 0}

    def step():
        seen["micro"] += 1
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y) / 2
        scaler.scale(loss).backward()
        if seen["micro"] % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if seen["micro"] % (3 if broken else 2) == 0:
            scaler.update(2.0 ** (8 + seen["micro"] % 4))

    return step
