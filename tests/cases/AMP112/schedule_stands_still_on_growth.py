"""The schedule advances where the scale is what it was before `update()`: not on a skip, and not when the scale grows either.

Effect: one step of the schedule is lost with each growth.
Source: PyTorch docs, "How to adjust learning rate".
"""

import torch
from torch import nn

EXPECT = ("AMP112", "AMP101")


def build(broken, device="cpu"):
    torch.manual_seed(1107)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        after = scaler.get_scale()
        if after == before if broken else after >= before:
            schedule.step()
        return loss.item()

    return step
