"""A hand-written scaler tests for overflow by a sum of squares in float16.

Effect: finite gradients above 256 count as overflow; the scale falls for no reason.
Source: PyTorch docs, `torch.amp.GradScaler.unscale_`: it looks for inf and NaN.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP208", "AMP202", "AMP205", "AMP310", "AMP204", "AMP305")


class Scaler:
    def __init__(self, start, dtype):
        self.current, self.dtype, self.overflow = start, dtype, False
        self.count = 0

    def state_dict(self):
        return {"scale": self.current, "count": self.count}

    def load_state_dict(self, state):
        self.current, self.count = state["scale"], state["count"]

    def get_scale(self):
        return self.current

    def scale(self, loss):
        return loss * self.current

    def unscale_(self, optimizer):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        total = sum(g.to(self.dtype).square().sum() for g in grads)
        self.overflow = not bool(torch.isfinite(total))
        torch._foreach_mul_(grads, 1.0 / self.current)

    def step(self, optimizer):
        if not self.overflow:
            optimizer.step()

    def update(self):
        self.count = 0 if self.overflow else self.count + 1
        if self.overflow:
            self.current *= 0.5
        elif self.count % 200 == 0:
            self.current *= 2.0


def build(broken, device="cpu"):
    torch.manual_seed(281)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = Scaler(2.0**4, torch.float16 if broken else torch.float32)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return ampcheck.Training(step, scaler=scaler)
