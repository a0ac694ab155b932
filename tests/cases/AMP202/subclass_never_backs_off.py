"""A subclass of GradScaler overrides `update` and forgets the overflow.

Effect: the scale only grows.
Source: PyTorch docs, `torch.amp.GradScaler.update`.
"""

import torch
from torch import nn

EXPECT = ("AMP202", "AMP208", "AMP204")


class Eager(torch.amp.GradScaler):
    forgets = False

    def update(self, new_scale=None):
        before = self.get_scale()
        super().update(new_scale)
        if self.forgets and self.get_scale() < before:
            self._scale.fill_(before)


def build(broken, device="cpu"):
    torch.manual_seed(212)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = Eager(device, init_scale=2.0**10)
    scaler.forgets = broken
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
