"""L2 decay is added to `p.grad` by hand while the gradient carries the scale.

Effect: the decay is divided by the scale with the gradient, and so is gone.
Source: PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


def build(broken, device="cpu"):
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(9, 14), nn.ReLU(), nn.Linear(14, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**9)
    x, y = torch.randn(12, 9, device=device), torch.randint(0, 3, (12,), device=device)

    @torch.no_grad()
    def decay(rate):
        for p in model.parameters():
            if p.ndim > 1:
                p.grad += rate * p

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        scaler.scale(nn.functional.cross_entropy(logits.float(), y)).backward()
        if broken:
            decay(1e-2)
        scaler.unscale_(optimizer)
        if not broken:
            decay(1e-2)
        scaler.step(optimizer)
        scaler.update()

    return step
