"""One micro-batch a call, windows of two, and a loader with five batches; then StopIteration.

The trap: calls without a step, and a run that ends by itself in the middle of a window.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1029)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    y = torch.randn(8, 8, device=device)

    loader = iter(torch.randn(5, 8, 8, device=device))
    seen = {"micro": 0}

    def step():
        batch = next(loader)
        with torch.autocast(device, dtype=torch.float16):
            out = model(batch)
        loss = nn.functional.mse_loss(out.float(), y) / 2
        scaler.scale(loss).backward()
        seen["micro"] += 1
        if seen["micro"] % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss.item()

    return step
