"""The step function is chosen once, by a flag that nobody sets: `functools.partial(optimizer.step)` instead of the scaler's.

Effect: scaled gradients, clipped or not, go straight into the optimizer.
Source: PyTorch docs, `torch.amp.GradScaler.step`.
"""

import functools

import torch
from torch import nn

EXPECT = ("AMP103",)


def build(broken, device="cpu"):
    torch.manual_seed(22)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=64.0)
    advance = functools.partial(optimizer.step) if broken else functools.partial(scaler.step, optimizer)
    x, y = torch.randn(8, 6, device=device), torch.randint(0, 4, (8,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        advance()
        if not broken:
            scaler.update()
        return loss.item()

    return step
