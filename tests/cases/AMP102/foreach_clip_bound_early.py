"""A clip written with foreach calls that were bound to names at import time, before `unscale_`.

Effect: the global norm is that of scaled gradients, so every step has the length `max_norm / scale`.
Source: PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import _foreach_mul_ as scale_all
from torch import _foreach_norm as norms_of
from torch import nn

EXPECT = ("AMP102",)


def clip(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = torch.linalg.vector_norm(torch.stack(norms_of(grads)))
    scale_all(grads, (max_norm / (total + 1e-6)).clamp(max=1.0))


def build(broken, device="cpu"):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 3, 8, device=device), torch.randint(0, 5, (8,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        scaler.scale(nn.functional.cross_entropy(logits.float(), y)).backward()
        if broken:
            clip(list(model.parameters()), 0.5)
            scaler.unscale_(optimizer)
        else:
            scaler.unscale_(optimizer)
            clip(list(model.parameters()), 0.5)
        scaler.step(optimizer)
        scaler.update()

    return step
