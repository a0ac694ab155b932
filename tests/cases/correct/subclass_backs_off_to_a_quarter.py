"""A subclass of GradScaler that counts its steps, with `backoff_factor=0.25`.

The trap: "20 overflows in a row must leave a scale of 2^-24 or more". From 2^10 they do not at that factor, with torch's own class or with another.
Source: PyTorch docs, `torch.amp.GradScaler`.
"""

import torch
from torch import nn

EXPECT = ()


class Counting(torch.amp.GradScaler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = 0

    def step(self, optimizer, *args, **kwargs):
        self.steps += 1
        return super().step(optimizer, *args, **kwargs)


def build(device="cpu"):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = Counting(device, init_scale=2.0**10, backoff_factor=0.25)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
