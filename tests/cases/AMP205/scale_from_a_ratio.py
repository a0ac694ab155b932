"""The scale follows `target / largest gradient`, and the largest gradient of an all-zero batch is zero.

Effect: the scale becomes infinite.
Source: PyTorch docs, `torch.amp.GradScaler.update(new_scale)`.
"""

import torch
from torch import nn

EXPECT = ("AMP205",)


def build(broken, device="cpu"):
    torch.manual_seed(241)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        weight = 0.0 if seen["calls"] == 3 else 1.0
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = weight * nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        largest = torch.stack([p.grad.abs().max() for p in model.parameters()]).max()
        scaler.step(optimizer)
        scaler.update()
        wanted = (1024.0 / largest).log2().floor().exp2()
        if broken or 0.0 < wanted < float("inf"):
            scaler.update(wanted if broken else min(float(wanted), 2.0**15))
        return loss.item()

    return step
