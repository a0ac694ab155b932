"""Row numbers of a table pass through float16 before they are used.

Effect: beyond 2048 only even numbers are left, beyond 4096 those that 4 divides: other rows are read, and trained.
Source: IEEE 754 binary16: integers are exact up to 2048.
"""

import torch
from torch import nn

EXPECT = ("AMP502", "AMP503", "AMP501")


class Lookup(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.table = nn.Parameter(torch.randn(6000, 16))
        self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.dtype = torch.float16 if broken else torch.float32

    def forward(self, position):
        return self.head(self.table[position.to(self.dtype).long()])


def build(broken, device="cpu"):
    torch.manual_seed(502)
    model = Lookup(broken).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    position, y = torch.randint(2100, 6000, (64,), device=device), torch.randint(0, 8, (64,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(position)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
