"""A focal loss by hand takes the sigmoid in half and weighs it by FP32 labels before the logarithm.

Effect: the product is FP32 and so is its logarithm, but the probabilities have the 11 bits of half: near 1 the loss is a staircase.
Source: PyTorch docs, autocast: `binary_cross_entropy_with_logits` instead of a sigmoid and a loss of probabilities.
"""

import torch
from torch import nn

EXPECT = ("AMP305", "AMP304")


def build(broken, device="cpu"):
    torch.manual_seed(305)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(64, 16, device=device), (torch.rand(64, 8, device=device) < 0.2).float()

    def focal(logits):
        p = torch.sigmoid(logits if broken else logits.float())
        right = p * y + (1 - p) * (1 - y)
        return -((1 - right) ** 2 * torch.log(right + 1e-4)).mean()

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = focal(4 * model(x))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
