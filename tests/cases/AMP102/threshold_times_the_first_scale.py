"""Scaled gradients are cut to the true limit times the scale, which was read when training began.

Effect: each time that the scale grows, the limit is half of what it was.
Source: PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


class Loop:
    def __init__(self, broken, device):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
        self.broken, self.device, self.limit = broken, device, 0.05 * self.scaler.get_scale()

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.float16):
            out = self.model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        self.scaler.scale(loss).backward()
        limit = self.limit if self.broken else 0.05 * self.scaler.get_scale()
        nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


def build(broken, device="cpu"):
    torch.manual_seed(1305)
    loop = Loop(broken, device)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    return lambda: loop.step(x, y)
