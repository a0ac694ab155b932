"""Generator and critic in one call, on one scaler, with one update after both steps.

The trap: the critic's gradients of the generator's loss are cleared, not stepped.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1024)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 8)).to(device)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            fake = model(x)
            fooled = -critic(fake).float().mean()
        scaler.scale(fooled).backward()
        scaler.step(optimizer)
        critic_optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            told = critic(fake.detach()).float().mean() - critic(y).float().mean()
        scaler.scale(told).backward()
        scaler.step(critic_optimizer)
        scaler.update()
        return told.item()

    return step
