"""`@torch.autocast(...)` decorates the function that runs forward, backward and step.

Effect: as with a block around all of it.
Source: PyTorch docs, `torch.autocast`: it wraps only the forward pass and the loss.
"""

import torch
from torch import nn

EXPECT = ("AMP108",)


def build(broken, device="cpu"):
    torch.manual_seed(81)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)
    cast = torch.autocast(device, dtype=torch.bfloat16)

    def loss_of():
        return nn.functional.cross_entropy(model(x).float(), y)

    def train(forward):
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.item()

    if broken:
        whole = cast(train)
        return lambda: whole(loss_of)
    forward = cast(loss_of)
    return lambda: train(forward)
