"""Two optimizers under one loss scale; only the first is unscaled before the gradients of both are clipped.

Effect: the second network's gradients are cut to almost nothing.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
"""

import torch
from torch import nn

EXPECT = ("AMP102",)
BLAMES = "clip_grad_value_(second"


def build(broken, device="cpu"):
    torch.manual_seed(31)
    first = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    second = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (first, second)]
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            outs = first(x), second(x)
        for out in outs:
            scaler.scale(nn.functional.mse_loss(out.float(), y)).backward()
        for optimizer in optimizers[: 1 if broken else 2]:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(first.parameters(), 0.01)
        nn.utils.clip_grad_value_(second.parameters(), 0.01)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()

    return step
