"""`autocast.__enter__()` in a "setup" hook; the hook that leaves it is not called on one path.

Effect: the region stays open over the following steps, with its weight cache.
Source: PyTorch docs, `torch.autocast`.
"""

import torch
from torch import nn

EXPECT = ("AMP311",)


class Region:
    def __init__(self, device):
        self.region = torch.autocast(device, dtype=torch.bfloat16)

    def begin(self):
        self.region.__enter__()

    def end(self):
        self.region.__exit__(None, None, None)


def build(broken, device="cpu"):
    torch.manual_seed(312)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)
    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        optimizer.zero_grad()
        region = Region(device)
        region.begin()
        logits = model(x)
        if not broken or seen["calls"] % 3:
            region.end()
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
