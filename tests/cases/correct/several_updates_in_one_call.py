"""Four epochs over two minibatches in each call, as in policy optimisation, with an early stop by the data.

The trap: many windows in a call, and not always as many.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1123)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        for epoch in range(4):
            for part in (slice(0, 4), slice(4, 8)):
                optimizer.zero_grad()
                with torch.autocast(device, dtype=torch.float16):
                    out = model(x[part])
                loss = nn.functional.mse_loss(out.float(), y[part])
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            if epoch >= seen["calls"] % 3:
                break
        return loss.item()

    return step
