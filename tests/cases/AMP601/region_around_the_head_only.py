"""A refactoring left the autocast block around the head; the backbone runs before it.

Effect: nine tenths of the work run in float32.
Source: Micikevicius et al., "Mixed Precision Training", 2018.
"""

import torch
from torch import nn

EXPECT = ("AMP601",)


def build(broken, device="cpu"):
    torch.manual_seed(601)
    backbone = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()).to(device)
    head = nn.Linear(64, 8).to(device)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.05)
    x, y = torch.randn(16, 16, device=device), torch.randint(0, 8, (16,), device=device)

    def step():
        optimizer.zero_grad()
        if broken:
            features = backbone(x)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = head(features if broken else backbone(x))
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
