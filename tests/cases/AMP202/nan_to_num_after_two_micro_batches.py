"""`nan_to_num_` on the gradients of a window of two micro-batches, before the scaler looks at them.

Effect: no overflow is ever seen; the step is taken with zeros in place of what overflowed, and the scale never falls.
Source: PyTorch docs, `torch.amp.GradScaler`.
"""

import torch
from torch import nn

EXPECT = ("AMP202",)


def build(broken, device="cpu"):
    torch.manual_seed(17)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
            with torch.autocast(device, dtype=torch.float16):
                out = model(a)
            scaler.scale(nn.functional.mse_loss(out.float(), b) / 2).backward()
        if broken:
            for p in model.parameters():
                p.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        scaler.step(optimizer)
        scaler.update()

    return step
