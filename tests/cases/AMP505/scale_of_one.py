"""The loss scale is held at 1: the scaler is there, and does nothing.

Effect: gradients of a small loss underflow in the 16-bit backward.
Source: Micikevicius et al., "Mixed Precision Training", section 3.2: values below 2^-24 become zero.
"""

import torch
from torch import nn

EXPECT = ("AMP505", "AMP502", "AMP503")


def build(broken, device="cpu"):
    torch.manual_seed(505)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=1.0 if broken else 2.0**16, growth_interval=10**6)
    x, y = torch.randn(256, 8, device=device), 1e-3 * torch.randn(256, 4, device=device)
    with torch.no_grad():
        model[-1].weight.mul_(0.01)
        model[-1].bias.zero_()

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
