"""The scale is capped by `update(new_scale)` after every micro-batch, also between two of one window.

Effect: the micro-batches of a window carry different scales, and are divided by the last one.
Source: PyTorch docs, "Gradient accumulation": the scale is held over a window.
"""

import torch
from torch import nn

EXPECT = ("AMP107", "AMP105")


def build(broken, device="cpu"):
    torch.manual_seed(71)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12, growth_interval=3)
    x, y = torch.randn(2, 7, 6, device=device), torch.randn(2, 7, 2, device=device)

    def step():
        for i in range(2):
            with torch.autocast(device, dtype=torch.float16):
                out = model(x[i])
            loss = nn.functional.mse_loss(out.float(), y[i]) / 2
            scaler.scale(loss).backward()
            if i == 1:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            if (broken or i == 1) and scaler.get_scale() > 2.0**11:
                scaler.update(2.0**11)

    return step
