"""After `scaler.step(optimizer)` the old `optimizer.step()` was left standing.

Effect: every update is made twice, and the second one is not skipped on an overflow.
Source: PyTorch docs, `torch.amp.GradScaler.step`.
"""

import torch
from torch import nn

EXPECT = ("AMP103",)


def build(broken, device="cpu"):
    torch.manual_seed(21)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(6, 2, 6, 6, device=device), torch.randint(0, 2, (6,), device=device)

    def step():
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if broken:
            optimizer.step()
        return loss.item()

    return step
