"""A hand-written scaler moves its scale on before it divides the gradients by it.

Effect: each time that the scale grows the update is half of what it should be.
Source: PyTorch docs, `torch.amp.GradScaler`: the scale changes in `update`, after the step.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP208",)


class Scaler:
    def __init__(self, start, window, early):
        self.value, self.window, self.early, self.clean = start, window, early, 0

    def get_scale(self):
        return self.value

    def scale(self, loss):
        return loss * self.value

    def move(self, overflow):
        self.clean = 0 if overflow else self.clean + 1
        if overflow:
            self.value /= 2.0
        elif self.clean % self.window == 0:
            self.value = min(self.value * 2.0, 2.0**24)

    def step(self, optimizer):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        overflow = not all(bool(g.isfinite().all()) for g in grads)
        if self.early:
            self.move(overflow)
        if not overflow:
            torch._foreach_div_(grads, self.value)
            optimizer.step()
        if not self.early:
            self.move(overflow)


def build(broken, device="cpu"):
    torch.manual_seed(1303)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = Scaler(2.0**8, 4, broken)
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
