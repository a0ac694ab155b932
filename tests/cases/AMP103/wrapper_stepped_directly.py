"""A lookahead wrapper around the optimizer is stepped by itself, and steps the inner optimizer outside the scaler.

Effect: the fast weights move by scaled gradients.
Source: PyTorch docs, `torch.amp.GradScaler.step`; Zhang et al., "Lookahead Optimizer", 2019, for the wrapper.
"""

import torch
from torch import nn

EXPECT = ("AMP103",)


class Lookahead:
    """Pulls slow weights along; it is not derived from torch's Optimizer."""

    def __init__(self, inner, every=2, share=0.5):
        self.inner, self.every, self.share, self.count = inner, every, share, 0
        self.param_groups = inner.param_groups
        self.slow = [[p.detach().clone() for p in g["params"]] for g in inner.param_groups]

    def zero_grad(self):
        self.inner.zero_grad()

    @torch.no_grad()
    def blend(self):
        self.count += 1
        if self.count % self.every == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for p, s in zip(group["params"], slow, strict=True):
                    p.copy_(s.lerp_(p, self.share))

    def step(self):
        self.inner.step()
        self.blend()


def build(broken, device="cpu"):
    torch.manual_seed(20)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3)).to(device)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=1e-2))
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(10, 8, device=device), torch.randint(0, 3, (10,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if broken:
            optimizer.step()
        else:
            before = scaler.get_scale()
            scaler.step(optimizer.inner)
            scaler.update()
            if scaler.get_scale() >= before:
                optimizer.blend()
        return loss.item()

    return step
