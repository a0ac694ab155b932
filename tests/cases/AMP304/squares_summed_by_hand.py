"""A squared error is written out, and its sum divided, in float16.

Effect: the sum of many squares overflows or is rounded to 11 bits, and so is the first gradient of the backward, the loss scale.
Source: PyTorch docs, autocast op reference: mse_loss autocasts to float32; what is written by hand does not.
"""

import torch
from torch import nn

EXPECT = ("AMP304", "AMP305", "AMP501")


def build(broken, device="cpu"):
    torch.manual_seed(3042)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(64, 16, device=device), torch.randn(64, 16, device=device)

    def step():
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
            difference = out - y.half() if broken else out.float() - y
            loss = (difference * difference).sum() / difference.numel()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
