"""A penalty on directional derivatives by `torch.func.jvp`, in FP32 beside the autocast region.

The trap: forward mode has zeros without memory, which crash the process when they are read or rounded while ops are watched.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1204)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        _, slope = torch.func.jvp(model, (x,), (torch.randn_like(x),))
        loss = nn.functional.mse_loss(out.float(), y) + 0.1 * slope.square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
