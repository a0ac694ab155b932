"""A logging proxy forwards every attribute by `__getattr__`; the loop calls `step` on it, not the scaler's.

Effect: on the path with the proxy the scaler is never asked.
Source: PyTorch docs, `torch.amp.GradScaler.step`.
"""

import torch
from torch import nn

EXPECT = ("AMP103",)


class Logged:
    def __init__(self, target):
        self.target, self.calls = target, []

    def __getattr__(self, name):
        self.calls.append(name)
        return getattr(self.target, name)


def build(broken, device="cpu"):
    torch.manual_seed(26)
    model = nn.Sequential(nn.Linear(7, 9), nn.SiLU(), nn.Linear(9, 3)).to(device)
    optimizer = Logged(torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))
    scaler = torch.amp.GradScaler(device, init_scale=2.0**7)
    x, y = torch.randn(10, 7, device=device), torch.randint(0, 3, (10,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if broken:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    return step
