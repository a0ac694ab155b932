"""A hand-written scaler with a constant scale, `__slots__` and no update.

The trap: it cannot be given attributes, and its scale never moves.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ()


class Constant:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor

    def get_scale(self):
        return self.factor

    def scale(self, loss):
        return loss * self.factor

    def step(self, optimizer):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        if all(bool(torch.isfinite(g).all()) for g in grads):
            torch._foreach_mul_(grads, 1.0 / self.factor)
            optimizer.step()


def build(device="cpu"):
    torch.manual_seed(1031)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = Constant(2.0**7)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def set_scale(value):
        scaler.factor = value

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        return loss.item()

    return ampcheck.Training(step, scaler=scaler, set_scale=set_scale)
