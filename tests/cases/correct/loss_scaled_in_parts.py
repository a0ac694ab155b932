"""A list of losses is scaled at once and summed; one of them depends on no parameter.

The trap: `scale()` of a list, and backward on a sum.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1044)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        parts = [nn.functional.mse_loss(out.float(), y), out.float().abs().mean(), y.square().mean()]
        sum(scaler.scale(parts)).backward()
        scaler.step(optimizer)
        scaler.update()
        return [float(p) for p in parts]

    return step
