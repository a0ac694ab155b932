"""A margin loss written by hand is computed after the autocast block, on outputs that are still bfloat16.

Effect: the loss and its mean are rounded to 8 bits; nothing casts them, as the region has ended.
Source: PyTorch docs, autocast op reference: losses autocast to float32.
"""

import torch
from torch import nn

EXPECT = ("AMP304", "AMP501")


def build(broken, device="cpu"):
    torch.manual_seed(304)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    left, right = torch.randn(20, 12, device=device), torch.randn(20, 12, device=device)
    same = (torch.arange(20, device=device) % 2).to(torch.bfloat16)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            a, b = model(left), model(right)
        if not broken:
            a, b = a.float(), b.float()
        distance = (a - b).abs().sum(1)
        loss = (same * distance + (1 - same) * (3 - distance).clamp(min=0)).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
