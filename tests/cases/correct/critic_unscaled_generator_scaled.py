"""The generator's loss is scaled and goes through the critic, whose own loss is not scaled and whose optimizer is stepped directly.

The trap: an optimizer that is stepped outside the scaler, of a network that a scaled backward has reached. Its gradients are cleared.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1092)
    generator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
    critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    noise, real = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        for_generator.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            fake = generator(noise)
            verdict = critic(fake)
        scaler.scale(nn.functional.softplus(-verdict.float()).mean()).backward()
        scaler.step(for_generator)
        scaler.update()
        for_critic.zero_grad()
        loss = nn.functional.softplus(critic(fake.detach().float())).mean() + nn.functional.softplus(-critic(real)).mean()
        loss.backward()
        for_critic.step()
        return loss.item()

    return step
