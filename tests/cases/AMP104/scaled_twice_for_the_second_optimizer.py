"""Two optimizers, each with a loss of its own under one loss scale; the second loss is scaled twice.

Effect: the second network's gradients are the scale too large, and clipped to a norm where they should not be.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
"""

import torch
from torch import nn

EXPECT = ("AMP104",)
BLAMES = "backward()"


def build(broken, device="cpu"):
    torch.manual_seed(33)
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
        losses = [scaler.scale(nn.functional.mse_loss(out.float(), y)) for out in outs]
        if broken:
            losses[1] = scaler.scale(losses[1])
        losses[0].backward()
        losses[1].backward()
        for optimizer, model in zip(optimizers, (first, second), strict=True):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()

    return step
