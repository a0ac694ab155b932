"""`unscale_` runs after the first micro-batch of a window, before the last one is added.

Effect: a scaled gradient is added to an unscaled one, and the scaler does not divide any more.
Source: PyTorch docs, `torch.amp.GradScaler.unscale_`: after all gradients of the step are accumulated.
"""

import torch
from torch import nn

EXPECT = ("AMP106", "AMP107", "AMP102", "AMP104")


def build(broken, device="cpu"):
    torch.manual_seed(1104)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        for i in range(2):
            with torch.autocast(device, dtype=torch.float16):
                out = model(x + i)
            loss = nn.functional.mse_loss(out.float(), y) / 2
            scaler.scale(loss).backward()
            if i == (0 if broken else 1):
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
