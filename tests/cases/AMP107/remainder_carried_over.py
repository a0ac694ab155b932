"""An epoch of five batches with windows of two: the fifth batch's gradient is left and joins the next epoch's first window.

Effect: that window holds three micro-batches, each divided by two.
Source: PyTorch docs, "Gradient accumulation".
"""

import torch
from torch import nn

EXPECT = ("AMP107",)


def build(broken, device="cpu"):
    torch.manual_seed(74)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(5, 7, 6, device=device), torch.randn(5, 7, 2, device=device)

    def step():
        for i in range(5):
            size = 2 if broken else min(2, 5 - i // 2 * 2)
            with torch.autocast(device, dtype=torch.float16):
                out = model(x[i])
            loss = nn.functional.mse_loss(out.float(), y[i]) / size
            scaler.scale(loss).backward()
            if i % 2 == 1 or (i == 4 and not broken):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    return step
