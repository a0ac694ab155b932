"""The precision was changed to bfloat16; the scaler stayed.

Effect: needless checks, and steps that are skipped when the scale has grown too far.
Source: PyTorch docs, "Automatic Mixed Precision package": gradient scaling is for float16.
"""

import torch
from torch import nn

EXPECT = ("AMP209",)


def build(broken, device="cpu"):
    torch.manual_seed(270)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, enabled=broken)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
