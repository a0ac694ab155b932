"""A warm-up through the scaler, then a "fine-tuning" branch that steps the optimizer itself.

Effect: right for two calls, wrong from the third.
Source: PyTorch docs, `torch.amp.GradScaler.step`.
"""

import torch
from torch import nn

EXPECT = ("AMP103", "AMP105")


def build(broken, device="cpu"):
    torch.manual_seed(27)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 5)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x = torch.randn(10, 5, device=device)
    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), x)
        scaler.scale(loss).backward()
        if broken and seen["calls"] > 2:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    return step
