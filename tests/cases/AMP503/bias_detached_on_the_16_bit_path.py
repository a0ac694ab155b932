"""A layer takes a short cut when its input is in 16 bits: it adds a detached copy of its bias.

Effect: under autocast that bias is never trained; in FP32 it is, so no FP32 test sees it.
Source: PyTorch docs, `torch.Tensor.detach`: the result never requires gradient.
"""

import torch
from torch import nn

EXPECT = ("AMP503", "AMP502")


class Shift(nn.Module):
    def __init__(self, width, broken):
        super().__init__()
        self.bias = nn.Parameter(torch.full((width,), 0.1))
        self.broken = broken

    def forward(self, x):
        if self.broken and x.dtype is not torch.float32:
            return x + self.bias.detach().to(x.dtype)
        return x + self.bias.to(x.dtype)


def build(broken, device="cpu"):
    torch.manual_seed(503)
    model = nn.Sequential(nn.Linear(8, 24), Shift(24, broken), nn.Tanh(), nn.Linear(24, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(30, 8, device=device), torch.randint(0, 3, (30,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
