"""Sharpness-aware minimisation: the ascent uses scaled gradients, whose length is divided out; the descent is stepped once.

The trap: weights move between two backwards, and gradients are cleared after the first.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1021)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        def loss_of():
            with torch.autocast(device, dtype=torch.float16):
                out = model(x)
            return nn.functional.mse_loss(out.float(), y)

        optimizer.zero_grad()
        loss = loss_of()
        scaler.scale(loss).backward()
        grads = [p.grad for p in model.parameters()]
        length = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads]))
        if bool(length.isfinite()):
            moves = [0.05 * g / length for g in grads]
            with torch.no_grad():
                torch._foreach_add_(list(model.parameters()), moves)
            optimizer.zero_grad()
            scaler.scale(loss_of()).backward()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), moves)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
