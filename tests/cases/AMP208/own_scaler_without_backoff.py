"""A hand-written scaler that grows on clean steps and never falls.

Effect: after the first overflow of its own making every step is skipped.
Source: PyTorch docs, `torch.amp.GradScaler`.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP208", "AMP202", "AMP204", "AMP205")


class Scaler:
    def __init__(self, start, interval, falls):
        self.value, self.interval, self.falls, self.clean = start, interval, falls, 0

    def get_scale(self):
        return self.value

    def scale(self, loss):
        return loss * self.value

    def step(self, optimizer):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        if not all(bool(g.isfinite().all()) for g in grads):
            self.clean = 0
            if self.falls:
                self.value /= 2.0
            return
        torch._foreach_div_(grads, self.value)
        optimizer.step()
        self.clean += 1
        if self.clean == self.interval:
            self.value, self.clean = self.value * 2.0, 0


def build(broken, device="cpu"):
    torch.manual_seed(280)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = Scaler(2.0**8, 4, not broken)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        return loss.item()

    def set_scale(value):
        scaler.value = value

    return ampcheck.Training(step, scaler=scaler, set_scale=set_scale)
