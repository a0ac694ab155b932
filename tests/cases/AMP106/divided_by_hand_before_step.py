"""Gradients are divided by `get_scale()` by hand, clipped, and then given to `scaler.step`, which divides them again.

Effect: updates are smaller by the scale; the clip hides it in the norms that are logged.
Source: PyTorch docs, "Working with Unscaled Gradients": `unscale_` tells the scaler.
"""

import torch
from torch import nn

EXPECT = ("AMP106",)


def build(broken, device="cpu"):
    torch.manual_seed(40)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**11)
    x, y = torch.randn(10, 8, device=device), torch.randint(0, 3, (10,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if broken:
            inverse = 1.0 / scaler.get_scale()
            for p in model.parameters():
                p.grad.mul_(inverse)
        else:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
