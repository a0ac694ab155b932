"""A zero-centred penalty is computed from `autograd.grad` of the scaled loss, and not divided.

Effect: the penalty is larger by the square of the scale.
Source: PyTorch docs, "Gradient penalty".
"""

import torch
from torch import nn

EXPECT = ("AMP102", "AMP104", "AMP101")


def build(broken, device="cpu"):
    torch.manual_seed(14)
    critic = nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 1)).to(device)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**6)
    real = torch.randn(8, 6, device=device)

    def step():
        optimizer.zero_grad()
        x = real.clone().requires_grad_()
        with torch.autocast(device, dtype=torch.float16):
            score = critic(x).float().sum()
        (slope,) = torch.autograd.grad(scaler.scale(score), x, create_graph=True)
        if not broken:
            slope = slope / scaler.get_scale()
        penalty = slope.float().square().sum(1).mean()
        loss = 0.01 * penalty - score / 8
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
