"""The scale is set to a value from a table that ends in zero.

Effect: from then on gradients are 0 / 0.
Source: PyTorch docs, `torch.amp.GradScaler.update(new_scale)`.
"""

import torch
from torch import nn

EXPECT = ("AMP205",)


def build(broken, device="cpu"):
    torch.manual_seed(240)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    table = [2.0**10, 2.0**9, 2.0**8, 0.0 if broken else 2.0**7]
    seen = {"calls": 0}

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen["calls"] += 1
        scaler.update(table[min(seen["calls"], 3)])
        return loss.item()

    return step
