"""Adaptive gradient clipping: the norm of each unit's gradient is held to a share of the norm of its weights, while scaled.

Effect: the weights' norms carry no scale, the gradients' do; every unit is clipped.
Source: Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization", 2021, equation 3; PyTorch docs.
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


def unit_norm(t):
    return torch.linalg.vector_norm(t, dim=tuple(range(1, t.ndim)), keepdim=True) if t.ndim > 1 else t.abs()


@torch.no_grad()
def agc(parameters, factor=0.02, eps=1e-3):
    for p in parameters:
        limit = unit_norm(p).clamp(min=eps) * factor
        norm = unit_norm(p.grad)
        p.grad.copy_(torch.where(norm > limit, p.grad * (limit / norm.clamp(min=1e-12)), p.grad))


def build(broken, device="cpu"):
    torch.manual_seed(8)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(6, 3, 6, 6, device=device), torch.randint(0, 4, (6,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        agc(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
