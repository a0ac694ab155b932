"""A constant loss scale given as the seed of backward, with the learning rate divided by it.

The trap: fp16 without a scaler. Right: plain SGD without decay undoes the scale in the learning rate.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1007)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 256.0)
    scaler = 256.0
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward(torch.full_like(loss, scaler))
        optimizer.step()
        return loss.item()

    return step
