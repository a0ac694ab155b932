"""A weight penalty has a backward of its own in every third call, three times as strong.

The trap: windows of one and of two backwards.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1114)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    seen = {"calls": 0}

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        seen["calls"] += 1
        if seen["calls"] % 3 == 0:
            scaler.scale(3 * 1e-2 * sum(p.square().sum() for p in model.parameters())).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
