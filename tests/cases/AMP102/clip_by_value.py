"""`clip_grad_value_` before the gradients are unscaled.

Effect: at a scale of 4096 every gradient above 1e-4 is cut to 1 / 4096.
Source: PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn
from torch.nn.utils import clip_grad_value_

EXPECT = ("AMP102",)


def build(broken, device="cpu"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
    x, y = torch.randn(16, 12, device=device), torch.randn(16, 4, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        clip_grad_value_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
