"""`scaler.scale(loss)` is called for its effect, which it has not; backward runs on the plain loss.

Effect: every update is divided by the scale.
Source: PyTorch docs, `torch.amp.GradScaler.scale`: it returns the scaled loss.
"""

import torch
from torch import nn

EXPECT = ("AMP104",)


def build(broken, device="cpu"):
    torch.manual_seed(32)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-6)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**14)
    x, y = torch.randn(8, 6, device=device), torch.randn(8, 1, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaled = scaler.scale(loss)
        (loss if broken else scaled).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
