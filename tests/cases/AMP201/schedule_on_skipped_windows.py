"""The schedule is stepped at the end of every accumulation window, whether or not the scaler took the step.

Effect: learning rate and weights run apart by one step for each overflow.
Source: PyTorch docs, "Gradient accumulation", and "How to adjust learning rate": after `optimizer.step()`.
"""

import torch
from torch import nn

EXPECT = ("AMP201",)
MICRO_BATCHES = 3


def build(broken, device="cpu"):
    torch.manual_seed(203)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(MICRO_BATCHES, 8, 8, device=device), torch.randn(MICRO_BATCHES, 8, 8, device=device)

    def step():
        optimizer.zero_grad()
        for inputs, targets in zip(x, y, strict=True):
            with torch.autocast(device, dtype=torch.float16):
                out = model(inputs)
            loss = nn.functional.mse_loss(out.float(), targets) / MICRO_BATCHES
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if broken or scaler.get_scale() >= before:
            schedule.step()
        return loss.item()

    return step
