"""Weights are put on a grid of 1/64 after each step: quantised training, in FP32.

The trap: the values fit in 16 bits; no cast has made them so.
"""

import torch
from torch import nn

EXPECT = ()
QUIET = ("AMP307",)


def build(device="cpu"):
    torch.manual_seed(1206)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(64.0).round_().div_(64.0)
        return loss.item()

    return step
