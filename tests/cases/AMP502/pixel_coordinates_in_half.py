"""A keypoint head computes expected pixel coordinates in float16, in a picture 3000 pixels wide.

Effect: above 2048 a half has no fraction left: the offsets that the loss is about are rounded away, and with them the gradient.
Source: IEEE 754-2019, binary16: 11 significant bits.
"""

import torch
from torch import nn

EXPECT = ("AMP502", "AMP501", "AMP503")


def build(broken, device="cpu"):
    torch.manual_seed(502)
    model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 64)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    columns = torch.arange(2900, 2964, device=device).float()
    x, target = torch.randn(24, 12, device=device), 2932.0 + torch.randn(24, device=device)

    def expected_column(logits):
        weights = torch.softmax(logits.float(), -1)
        if broken:
            return (weights.half() * columns.half()).sum(-1).float()
        return (weights * columns).sum(-1)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.smooth_l1_loss(expected_column(logits), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
