"""A subclass of GradScaler doubles the scale in each clean update, whatever the interval says.

Effect: the scale runs away until it overflows, every few steps.
Source: PyTorch docs, `torch.amp.GradScaler(growth_interval)`.
"""

import torch
from torch import nn

EXPECT = ("AMP203", "AMP208", "AMP205")


class Hasty(torch.amp.GradScaler):
    hasty = False

    def update(self, new_scale=None):
        before = self.get_scale()
        super().update(new_scale)
        if self.hasty and self.get_scale() == before:
            self._scale.mul_(2.0)


def build(broken, device="cpu"):
    torch.manual_seed(221)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = Hasty(device, init_scale=2.0**6)
    scaler.hasty = broken
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
