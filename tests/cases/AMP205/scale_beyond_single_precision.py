"""The loop multiplies the scale by itself after each call, without a bound.

Effect: in a few calls `update(new_scale)` is given a number that single precision cannot hold, and raises.
Source: PyTorch docs, `torch.amp.GradScaler.update`: `new_scale` becomes a float32 tensor.
"""

import torch
from torch import nn

EXPECT = ("AMP205",)


def build(broken, device="cpu"):
    torch.manual_seed(1231)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        if broken:
            scaler.update(scaler.get_scale() ** 2)
        else:
            scaler.update()
        return loss.item()

    return step
