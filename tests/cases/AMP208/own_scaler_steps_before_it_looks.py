"""A hand-written scaler divides and steps, and looks for infinities afterwards, to lower the scale.

Effect: the overflow is in the weights by then.
Source: PyTorch docs, `torch.amp.GradScaler.step`.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP208", "AMP201")


class Scaler:
    def __init__(self, start, careful):
        self._scale, self.careful, self.good = start, careful, 0

    def get_scale(self):
        return self._scale

    def state_dict(self):
        return {"scale": self._scale, "good": self.good}

    def load_state_dict(self, state):
        self._scale, self.good = state["scale"], state["good"]

    def scale(self, loss):
        return loss * self._scale

    def step(self, optimizer):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        finite = all(bool(g.isfinite().all()) for g in grads)
        for g in grads:
            g.div_(self._scale)
        if finite or not self.careful:
            optimizer.step()
        self.good = self.good + 1 if finite else 0
        if not finite:
            self._scale = max(1.0, self._scale / 2.0)
        elif self.good == 100:
            self._scale, self.good = self._scale * 2.0, 0

    def update(self):
        """Kept for the interface: step() has done it."""


def build(broken, device="cpu"):
    torch.manual_seed(282)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = Scaler(2.0**8, not broken)
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return ampcheck.Training(step, scaler=scaler)
