"""The trainer is copied deeply before it is used, scaler and optimizer included.

The trap: objects that were made by no constructor.
"""

import copy

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1018)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    holder = copy.deepcopy({"model": model, "optimizer": optimizer, "scaler": scaler})
    model, optimizer, scaler = holder["model"], holder["optimizer"], holder["scaler"]

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
