"""The gradient norm that a step returns for the log is that of scaled gradients; training itself is right.

Effect: the curve jumps by two with every change of the scale.
Source: PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102", "AMP101")


def build(broken, device="cpu"):
    torch.manual_seed(16)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(9, 6, device=device), torch.randn(9, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss.item(), "grad_norm": norm}

    return step
