"""The clip unscales the inner optimizer, the step is given the wrapper around it: the scaler takes them for two.

Effect: gradients are divided twice and no error is raised.
Source: torch.amp.GradScaler keeps one state for each optimizer object.
"""

import torch
from torch import nn

EXPECT = ("AMP106",)


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another one, with its groups and state."""

    def __init__(self, inner):
        self.inner = inner
        self.defaults = inner.defaults

    param_groups = property(lambda self: self.inner.param_groups)
    state = property(lambda self: self.inner.state)

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)

    def step(self, closure=None):
        return self.inner.step(closure)


def build(broken, device="cpu"):
    torch.manual_seed(43)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)).to(device)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = Wrapped(inner)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(9, 6, device=device), torch.randint(0, 3, (9,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(inner if broken else optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
