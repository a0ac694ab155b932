"""A hand-written guard tests the loss, not the gradients, and steps the optimizer itself after dividing them.

Effect: an overflow in backward goes into the weights.
Source: PyTorch docs, `torch.amp.GradScaler.step`: skipped if inf or NaN are found.
"""

import torch
from torch import nn

EXPECT = ("AMP201", "AMP103")


def build(broken, device="cpu"):
    torch.manual_seed(200)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
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
            if torch.isfinite(loss):
                optimizer.step()
        else:
            scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
