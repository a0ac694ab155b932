"""A subclass of GradScaler that keeps the scale above a floor in `update`.

The trap: an overflow that does not lower the scale, at the floor.
"""

import torch
from torch import nn

EXPECT = ()


class Floored(torch.amp.GradScaler):
    floor = 2.0**6

    def update(self, new_scale=None):
        super().update(new_scale)
        if self.get_scale() < self.floor:
            super().update(self.floor)


def build(device="cpu"):
    torch.manual_seed(1033)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = Floored(device, init_scale=2.0**7)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

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
