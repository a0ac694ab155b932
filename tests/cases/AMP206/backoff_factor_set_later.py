"""The backoff factor is set after construction, to two: the author took it for a divisor.

Effect: each overflow doubles the scale.
Source: PyTorch docs, `torch.amp.GradScaler.set_backoff_factor`: the scale is multiplied by it.
"""

import torch
from torch import nn

EXPECT = ("AMP206",)


def build(broken, device="cpu"):
    torch.manual_seed(1230)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    scaler.set_backoff_factor(2.0 if broken else 0.5)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

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
