"""`update()` is called only where the weights have moved.

Effect: after an overflow the scale stays; the next `step` raises or skips again.
Source: PyTorch docs, `torch.amp.GradScaler.update`: in every iteration.
"""

import torch
from torch import nn

EXPECT = ("AMP202", "AMP105")


def build(broken, device="cpu"):
    torch.manual_seed(1106)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        before = model[0].weight.detach().clone()
        scaler.step(optimizer)
        if not broken or not torch.equal(before, model[0].weight):
            scaler.update()
        return loss.item()

    return step
