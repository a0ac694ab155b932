"""Generator and critic take turns, one call each, with a scaler for each.

The trap: an optimizer with gradients that is not stepped; gradients thrown away.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1023)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 8)).to(device)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    critic_scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        with torch.autocast(device, dtype=torch.float16):
            fake = model(x)
            if seen["calls"] % 2:
                score = critic(fake.detach()).float().mean() - critic(y).float().mean()
            else:
                score = -critic(fake).float().mean()
        if seen["calls"] % 2:
            critic_optimizer.zero_grad()
            critic_scaler.scale(score).backward()
            critic_scaler.step(critic_optimizer)
            critic_scaler.update()
        else:
            optimizer.zero_grad()
            scaler.scale(score).backward()
            scaler.step(optimizer)
            scaler.update()
        return score.item()

    return step
