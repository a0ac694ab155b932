"""Lazy layers have no weights before the first call, which makes the optimizer and the scaler too.

The trap: a module's parameters are looked at when the step was built, and some cannot be yet.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1064)
    model = nn.Sequential(nn.LazyLinear(32), nn.GELU(), nn.LazyLinear(8)).to(device)
    x, y = torch.randn(32, 16, device=device), torch.randint(0, 8, (32,), device=device)
    made = {}

    def step():
        if not made:
            model(x)
            made["optimizer"] = torch.optim.Adam(model.parameters(), lr=1e-3)
            made["scaler"] = torch.amp.GradScaler(device, init_scale=2.0**10)
        optimizer, scaler = made["optimizer"], made["scaler"]
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
