"""Generator and critic on one scaler: it is updated after the critic's step, while the other's gradients wait.

Effect: the generator's gradients were scaled before that update, and are divided by what it left.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers": one update, after all steps.
"""

import torch
from torch import nn

EXPECT = ("AMP105", "AMP110")


def build(broken, device="cpu"):
    torch.manual_seed(64)
    maker, critic = nn.Linear(4, 6).to(device), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    make_opt = torch.optim.Adam(maker.parameters(), lr=1e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    noise, real = torch.randn(8, 4, device=device), torch.randn(8, 6, device=device)

    def step():
        make_opt.zero_grad()
        critic_opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            fake = maker(noise)
            fooled = critic(fake)
            told = critic(fake.detach()) - critic(real)
        scaler.scale(-fooled.float().mean()).backward()
        critic_opt.zero_grad()
        scaler.scale(told.float().mean()).backward()
        scaler.step(critic_opt)
        if broken:
            scaler.update()
        scaler.step(make_opt)
        scaler.update()

    return step
