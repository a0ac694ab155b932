"""A recurrent cell casts its own weight at each of its steps.

Effect: eight casts of one weight a forward, each kept for the backward.
Source: PyTorch docs, `torch.autocast(cache_enabled=)`: a weight is cast once a region.
"""

import torch
from torch import nn

EXPECT = ("AMP604",)


class Recurrent(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(16, 16) / 4), nn.Linear(16, 4)
        self.broken = broken

    def forward(self, x):
        dtype = torch.get_autocast_dtype(x.device.type)
        low = self.weight.to(dtype)
        for _ in range(8):
            x = torch.tanh(nn.functional.linear(x, self.weight.to(dtype) if self.broken else low))
        return self.head(x)


def build(broken, device="cpu"):
    torch.manual_seed(604)
    model = Recurrent(broken).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(16, 16, device=device), torch.randint(0, 4, (16,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
