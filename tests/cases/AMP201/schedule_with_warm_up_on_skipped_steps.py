"""Warm-up, then cosine decay, stepped whether or not the scaler took the step.

The last factor of the warm-up and the first one of the decay are both 1: the learning rate stands still there for one step.

Effect: learning rate and weights run apart by one step for each overflow.
Source: PyTorch docs, "How to adjust learning rate": after `optimizer.step()`.
"""

import math

import torch
from torch import nn

EXPECT = ("AMP201",)
WARM_UP, TOTAL = 2, 9


def factor(step):
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - WARM_UP) / (TOTAL - WARM_UP))))


def build(broken, device="cpu"):
    torch.manual_seed(202)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if broken or scaler.get_scale() >= before:
            schedule.step()
        return loss.item()

    return step
