"""A scaler of the user's own around torch's, that logs and passes on.

The trap: it is not a GradScaler, and holds one.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ()


class Telling:
    def __init__(self, inner):
        self.inner, self.said = inner, []

    def scale(self, loss):
        self.said.append("scale")
        return self.inner.scale(loss)

    def step(self, optimizer):
        self.said.append("step")
        return self.inner.step(optimizer)

    def update(self):
        self.inner.update()

    def get_scale(self):
        return self.inner.get_scale()


def build(device="cpu"):
    torch.manual_seed(1030)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = Telling(torch.amp.GradScaler(device, init_scale=2.0**10))
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return ampcheck.Training(step, scaler=scaler)
