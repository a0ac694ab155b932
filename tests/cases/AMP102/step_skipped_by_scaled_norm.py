"""Batches with a gradient norm above a threshold are left out, but the norm is that of scaled gradients.

Effect: at a large scale no batch is ever used.
Source: PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102", "AMP101", "AMP204")


def build(broken, device="cpu"):
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(10, 6, device=device), torch.randn(10, 3, device=device)

    def step():
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
        if norm > 30.0:
            for p in model.parameters():
                p.grad.zero_()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step
