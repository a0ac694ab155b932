"""Adaptive instance normalisation takes mean and standard deviation of half activations.

Effect: the variance of 16-bit values is rounded, and overflows for large activations.
Source: Zhang and Sennrich, 2019, and every reference implementation: statistics in FP32.
"""

import torch
from torch import nn

EXPECT = ("AMP303", "AMP502")


class Restyled(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.first, self.last = nn.Conv1d(4, 16, 3, padding=1), nn.Conv1d(16, 4, 3, padding=1)
        self.style = nn.Linear(6, 32)
        self.broken = broken

    def forward(self, x, style):
        h = torch.relu(self.first(x))
        gain, shift = self.style(style)[:, :, None].chunk(2, dim=1)
        content = h if self.broken else h.float()
        mean, deviation = content.mean(-1, keepdim=True), content.std(-1, keepdim=True) + 1e-4
        return self.last((content - mean) / deviation * (1 + gain) + shift)


def build(broken, device="cpu"):
    torch.manual_seed(303)
    model = Restyled(broken).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, style, y = (torch.randn(*s, device=device) for s in ((8, 4, 24), (8, 6), (8, 4, 24)))

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x, style)
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
