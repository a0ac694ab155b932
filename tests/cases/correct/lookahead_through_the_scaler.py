"""A wrapper derived from torch's Optimizer shares the groups of the inner one and is stepped by the scaler.

The trap: two optimizer objects for one set of parameters.
"""

import torch
from torch import nn

EXPECT = ()


class Ahead(torch.optim.Optimizer):
    def __init__(self, inner, every=2):
        self.inner, self.every, self.count = inner, every, 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in inner.param_groups]
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        self.count += 1
        if self.count % self.every == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for p, s in zip(group["params"], slow, strict=True):
                    s.lerp_(p, 0.5)
                    p.copy_(s)


def build(device="cpu"):
    torch.manual_seed(1045)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = Ahead(torch.optim.AdamW(model.parameters(), lr=1e-3))
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
