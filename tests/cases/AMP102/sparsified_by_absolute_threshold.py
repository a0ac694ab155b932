"""Gradient compression drops entries below a fixed threshold before the scale is divided out.

Effect: which entries survive depends on the loss scale; at a large one nothing is dropped.
Source: Lin et al., "Deep Gradient Compression", 2018, for the method; PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


def build(broken, device="cpu"):
    torch.manual_seed(12)
    model = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 6)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
    x, y = torch.randn(16, 10, device=device), torch.randint(0, 6, (16,), device=device)
    residual = [torch.zeros_like(p) for p in model.parameters()]

    def compress(threshold=5e-3):
        for p, left in zip(model.parameters(), residual, strict=True):
            keep = p.grad.abs() >= threshold
            left.copy_(torch.where(keep, 0.0, p.grad))
            p.grad[~keep] = 0.0

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        compress()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
