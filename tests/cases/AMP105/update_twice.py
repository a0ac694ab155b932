"""`update()` is called by the training step and again by the epoch loop around it.

Effect: torch raises at the second one, "No inf checks were recorded prior to update".
Source: PyTorch docs, `torch.amp.GradScaler.update`.
"""

import torch
from torch import nn

EXPECT = ("AMP105",)


def build(broken, device="cpu"):
    torch.manual_seed(63)
    model = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def train():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    def step():
        value = train()
        if broken:
            scaler.update()
        return value

    return step
