"""`update()` stands before `step()`.

Effect: the found-inf record is cleared before the step reads it; the step divides by a scale that may be another one.
Source: PyTorch docs, `torch.amp.GradScaler`: scale, step, update.
"""

import torch
from torch import nn

EXPECT = ("AMP105",)


def build(broken, device="cpu"):
    torch.manual_seed(62)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if broken:
            scaler.update()
            scaler.step(optimizer)
        else:
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    return step
