"""Noise from the operating system's generator is added to the inputs.

Effect: no two runs agree, so nothing exact can be said about the step.
Source: PyTorch docs, "Reproducibility".
"""

import random

import torch
from torch import nn

EXPECT = ("AMP901",)
UNLOCATED = True  # the step differs as a whole


def build(broken, device="cpu"):
    torch.manual_seed(901)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    source = random.SystemRandom() if broken else random.Random(3)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x + 0.1 * source.random())
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
