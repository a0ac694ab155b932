"""A discriminator appends the standard deviation over its batch, taken of float16 activations.

Effect: squares above 65504 are inf and below 6e-8 zero; the mean of the rest is rounded.
Source: Karras et al., "Progressive Growing of GANs", 2018, section 3; its later float16 implementations cast up here.
"""

import torch
from torch import nn

EXPECT = ("AMP305", "AMP303")


class Deviation(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.broken = broken

    def forward(self, x):
        y = x if self.broken else x.float()
        y = (y - y.mean(0)).square().mean(0)
        return torch.cat([x, (y + 1e-8).sqrt().mean().to(x.dtype).expand(len(x), 8)], 1)


def build(broken, device="cpu"):
    torch.manual_seed(305)
    model = nn.Sequential(nn.Linear(16, 24), nn.LeakyReLU(0.2), Deviation(broken), nn.Linear(32, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x = torch.randn(16, 16, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            score = model(x)
        loss = nn.functional.softplus(-score.float()).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
