"""A hand-written batch norm keeps FP32 buffers, and fills its running variance with E[x^2] - E[x]^2 of a 16-bit activation.

Effect: with a mean well away from zero the difference cancels to nothing but rounding; evaluation goes wrong, training not.
Source: PyTorch docs, "Autocast Op Reference": batch_norm keeps FP32 statistics.
"""

import torch
from torch import nn

EXPECT = ("AMP506", "AMP303")


class RunningNorm(nn.Module):
    def __init__(self, width, broken):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.broken = broken

    def forward(self, x):
        full = x.float()
        mean, var = full.mean(0), full.var(0, unbiased=False)
        with torch.no_grad():
            if self.broken:
                seen = ((x * x).mean(0) - x.mean(0) ** 2).float()
            else:
                seen = var
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(seen, 0.1)
        return (full - mean) * torch.rsqrt(var + 1e-5)


def build(broken, device="cpu"):
    torch.manual_seed(506)
    model = nn.Sequential(nn.Linear(8, 24), RunningNorm(24, broken), nn.Tanh(), nn.Linear(24, 3)).to(device)
    with torch.no_grad():
        model[0].bias.add_(20.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 8, device=device), torch.randint(0, 3, (64,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
