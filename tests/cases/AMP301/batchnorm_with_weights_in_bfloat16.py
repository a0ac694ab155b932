"""A helper that is to spare the norms casts them instead, by `apply`; all other weights stay in float32.

Effect: updates of scale and shift vanish below half a unit in the last place; running statistics move in steps of 1/256.
Source: Micikevicius et al., "Mixed Precision Training", 2018: statistics stay in FP32.
"""

import torch
from torch import nn

EXPECT = ("AMP301",)


def build(broken, device="cpu"):
    torch.manual_seed(1220)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)).to(device)
    if broken:
        model.apply(lambda module: module.to(torch.bfloat16) if isinstance(module, nn.BatchNorm1d) else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(32, 8, device=device), torch.randn(32, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
