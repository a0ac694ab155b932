"""A new GradScaler is made in every call.

Effect: scale and growth tracker begin anew each time; the scale neither grows nor falls.
Source: PyTorch docs, "Typical Mixed Precision Training": one scaler, made once, for the whole run.
"""

import torch
from torch import nn

EXPECT = ("AMP203", "AMP202", "AMP204")


def build(broken, device="cpu"):
    torch.manual_seed(220)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10) if broken else kept
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
