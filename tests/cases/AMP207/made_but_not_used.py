"""A GradScaler is made and passed around, and no one calls it.

Effect: as without a scaler.
Source: PyTorch docs, "Gradient Scaling".
"""

import torch
from torch import nn

EXPECT = ("AMP207", "AMP505")


class Loop:
    def __init__(self, device, uses):
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
        self.device, self.uses = device, uses

    def __call__(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.float16):
            out = self.model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        if self.uses:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        return loss.item()


def build(broken, device="cpu"):
    torch.manual_seed(262)
    loop = Loop(device, not broken)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    return lambda: loop(x, y)
