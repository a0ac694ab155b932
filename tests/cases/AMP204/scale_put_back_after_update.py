"""After `update()` the loop restores the scale that it had before, "to keep it constant".

Effect: the scale never falls, and a too high one skips for ever.
Source: PyTorch docs, `torch.amp.GradScaler.update`.
"""

import torch
from torch import nn

EXPECT = ("AMP204", "AMP202")


def build(broken, device="cpu"):
    torch.manual_seed(211)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**16)
    x, y = torch.randn(7, 6, device=device), 300.0 * torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y, reduction="sum")
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if broken and scaler.get_scale() < before:
            scaler.update(before)
        return loss.item()

    return step
