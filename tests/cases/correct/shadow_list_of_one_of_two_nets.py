"""A generator whose averages are a bare list, as torch_ema keeps them, beside a critic that is not averaged.

The trap: the weights of both nets' norms begin at 1, so that an average of one is as near to the other's.
"""

import torch
from torch import nn
from torch.nn import functional as F

EXPECT = ()
QUIET = ("AMP405",)


def build(device="cpu"):
    torch.manual_seed(1205)
    critic = nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)).to(device)
    generator = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 40), nn.ReLU(), nn.Linear(40, 24))
    generator.to(device)
    average = [p.detach().clone() for p in generator.parameters()]
    critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-3)
    generator_optimizer = torch.optim.AdamW(generator.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    noise, real = torch.randn(16, 8, device=device), torch.randn(16, 24, device=device)

    def step():
        critic_optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            fake = generator(noise)
            judged = critic(real), critic(fake.detach())
        scaler.scale(F.softplus(-judged[0].float()).mean() + F.softplus(judged[1].float()).mean()).backward()
        scaler.step(critic_optimizer)

        generator_optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            judged = critic(fake)
        loss = F.softplus(-judged.float()).mean()
        scaler.scale(loss).backward()
        scaler.step(generator_optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= scale:
            torch._foreach_lerp_(average, [p.detach() for p in generator.parameters()], 0.01)
        return loss.item()

    return step
