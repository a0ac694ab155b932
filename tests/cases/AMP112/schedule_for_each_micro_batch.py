"""The schedule is stepped for every micro-batch of an accumulation window.

Effect: warm-up ends four times too early.
Source: PyTorch docs, "How to adjust learning rate".
"""

import torch
from torch import nn

EXPECT = ("AMP112",)


def build(broken, device="cpu"):
    torch.manual_seed(120)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=50)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(4, 7, 6, device=device), torch.randn(4, 7, 2, device=device)

    def step():
        for i in range(4):
            with torch.autocast(device, dtype=torch.float16):
                out = model(x[i])
            scaler.scale(nn.functional.mse_loss(out.float(), y[i]) / 4).backward()
            if i == 3:
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if not broken and scaler.get_scale() >= before:
                    schedule.step()
            if broken:
                schedule.step()

    return step
