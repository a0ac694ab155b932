"""Gradient centralisation, and the three quarters of the smallest entries dropped by rank, before `unscale_`.

The trap: thresholds on scaled gradients. Right: ranks and means scale along.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1003)
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
        for p in model.parameters():
            if p.ndim > 1:
                p.grad.sub_(p.grad.mean(1, keepdim=True))
                keep = p.grad.abs() >= p.grad.abs().flatten().kthvalue(p.numel() // 4).values
                p.grad.mul_(keep)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
