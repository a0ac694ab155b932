"""A small bias is added in place to a 16-bit activation, as cuDNN does for a convolution; a batch norm takes the mean of that.

The trap: most of the bias is rounded away, so the running mean, which is next to nothing but the bias, is far from the FP32 one in its own
measure. In that of the activation's spread, which the norm divides by, it is as exact as 16 bits are.
"""

import torch
from torch import nn

EXPECT = ()


class BiasedAfterwards(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outside, inside) * inside**-0.5)
        self.bias = nn.Parameter(torch.full((outside,), 1e-3))

    def forward(self, x):
        return nn.functional.linear(x, self.weight).add_(self.bias)


def build(device="cpu"):
    torch.manual_seed(7)
    model = nn.Sequential(BiasedAfterwards(8, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(256, 8)
    x, y = torch.cat([x, -x]).to(device), torch.randint(0, 3, (512,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
