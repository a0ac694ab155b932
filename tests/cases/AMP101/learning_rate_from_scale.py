"""A home-made safety valve lowers the learning rate by the logarithm of the loss scale.

Effect: the scale, which should only move exponents, sets the length of the steps.
Source: PyTorch docs, `torch.amp.GradScaler`: the scale has no meaning for the optimisation.
"""

import math

import torch
from torch import nn

EXPECT = ("AMP101",)


def build(broken, device="cpu"):
    torch.manual_seed(51)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if broken:
            optimizer.param_groups[0]["lr"] = 0.1 / (1.0 + math.log2(scaler.get_scale()))
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
