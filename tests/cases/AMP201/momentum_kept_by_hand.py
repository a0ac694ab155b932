"""A momentum buffer is kept outside the optimizer and fed before the scaler decides.

Effect: one overflow makes the buffer infinite for ever; every later step is NaN.
Source: PyTorch docs, `torch.amp.GradScaler.step`.
"""

import torch
from torch import nn

EXPECT = ("AMP204", "AMP201", "AMP109", "AMP102")


def build(broken, device="cpu"):
    torch.manual_seed(204)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    velocity = [torch.zeros_like(p) for p in model.parameters()]

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
        for p, v in zip(model.parameters(), velocity, strict=True):
            if broken or finite:
                v.mul_(0.9).add_(p.grad)
                p.grad.copy_(v)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
