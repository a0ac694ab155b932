"""A helper that returns new, clipped gradients and assigns them, called while they are scaled.

Effect: the threshold is compared with norms that are 1024 times too large.
Source: PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


class Engine:
    """Keeps model, optimizer and scaler together."""

    def __init__(self, device, broken):
        self.net = nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 10)).to(device)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        self.device, self.broken = device, broken

    def limited(self, limit):
        for p in self.net.parameters():
            length = p.grad.norm()
            p.grad = torch.where(length > limit, p.grad * (limit / length), p.grad)

    def train(self, x):
        self.opt.zero_grad(set_to_none=False)
        with torch.autocast(self.device, dtype=torch.float16):
            out = self.net(x)
        loss = (out.float() - x).square().sum()
        self.scaler.scale(loss).backward()
        if not self.broken:
            self.scaler.unscale_(self.opt)
        self.limited(20.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        return {"loss": loss.detach()}


def build(broken, device="cpu"):
    torch.manual_seed(2)
    engine = Engine(device, broken)
    x = torch.randn(12, 10, device=device)
    return lambda: engine.train(x)
