"""A hand-written norm keeps FP32 buffers, and passes their slow average through float16.

Effect: increments of a thousandth are below half a unit in the last place of float16; the running variance all but stands still.
Source: PyTorch docs, "Autocast Op Reference": batch_norm keeps FP32 statistics.
"""

import torch
from torch import nn

EXPECT = ("AMP506", "AMP303")


class SlowNorm(nn.Module):
    def __init__(self, width, broken):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.broken = broken

    def forward(self, x):
        full = x.float()
        with torch.no_grad():
            mean, var = full.mean(0), full.var(0, unbiased=False)
            if self.broken:
                self.running_mean.copy_((0.999 * self.running_mean.half() + 0.001 * mean.half()).float())
                self.running_var.copy_((0.999 * self.running_var.half() + 0.001 * var.half()).float())
            else:
                self.running_mean.lerp_(mean, 0.001)
                self.running_var.lerp_(var, 0.001)
        return ((full - self.running_mean) * torch.rsqrt(self.running_var + 1e-5)).to(x.dtype)


class Trainer:
    def __init__(self, broken, device):
        self.model = nn.Sequential(nn.Linear(16, 32), SlowNorm(32, broken), nn.ReLU(), nn.Linear(32, 8)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
        self.device = device

    def fit(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.float16):
            logits = self.model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


def build(broken, device="cpu"):
    torch.manual_seed(5062)
    trainer = Trainer(broken, device)
    x, y = torch.randn(64, 16, device=device), torch.randint(0, 8, (64,), device=device)
    return lambda: trainer.fit(x, y)
