"""A diffusion model multiplies timesteps and frequencies in bfloat16 before it takes their sine.

Effect: near timestep 1000 bfloat16 has steps of 4, more than half a turn: neighbouring timesteps get random phases.
Source: IEEE 754; bfloat16 has 8 significant bits.
"""

import torch
from torch import nn

EXPECT = ("AMP305", "AMP502", "AMP503", "AMP504")


class Denoiser(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.time, self.inp, self.out = nn.Linear(16, 32), nn.Linear(8, 32), nn.Linear(32, 8)
        self.dtype = torch.bfloat16 if broken else torch.float32

    def forward(self, x, t):
        frequencies = torch.exp(-torch.arange(8, device=x.device) / 2)
        angles = t.to(self.dtype)[:, None] * frequencies.to(self.dtype)
        embedded = torch.cat([angles.float().sin(), angles.float().cos()], 1)
        return self.out(torch.tanh(self.inp(x) + self.time(embedded)))


def build(broken, device="cpu"):
    torch.manual_seed(305)
    model = Denoiser(broken).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, noise = torch.randn(2, 32, 8, device=device)
    t = torch.randint(800, 1000, (32,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x, t)
        loss = nn.functional.mse_loss(out.float(), noise)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
