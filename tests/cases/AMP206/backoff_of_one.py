"""`backoff_factor` is 0.0 where 0.5 was meant.

Effect: the first overflow sets the scale to zero.
Source: PyTorch docs, `torch.amp.GradScaler(backoff_factor)`.
"""

import torch
from torch import nn

EXPECT = ("AMP206",)


def build(broken, device="cpu"):
    torch.manual_seed(250)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, backoff_factor=0.0 if broken else 0.5)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
