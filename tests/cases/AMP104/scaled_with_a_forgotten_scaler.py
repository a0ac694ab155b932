"""A base class and its subclass each made a scaler; one scales, the other steps.

Effect: the one that steps has never scaled, and raises.
Source: torch.amp.GradScaler: `unscale_` needs a scale.
"""

import torch
from torch import nn

EXPECT = ("AMP104", "AMP110")


def build(broken, device="cpu"):
    torch.manual_seed(1105)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    stepper = torch.amp.GradScaler(device, init_scale=2.0**10) if broken else scaler

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        stepper.step(optimizer)
        stepper.update()
        return loss.item()

    return step
