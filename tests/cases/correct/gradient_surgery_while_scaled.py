"""Two losses; conflicting gradients are projected (PCGrad), while scaled.

The trap: gradients are rewritten before `unscale_`. Right: the projection is homogeneous of degree one.
"""

import torch
from torch import nn

EXPECT = ()


def project(a, b):
    dot = torch.dot(a, b)
    return torch.where(dot < 0, a - dot / b.dot(b) * b, a)


def build(device="cpu"):
    torch.manual_seed(1002)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        losses = [nn.functional.mse_loss(out.float(), y), (out.float() + y).abs().mean()]
        parameters = list(model.parameters())
        flat = []
        for loss in losses:
            grads = torch.autograd.grad(scaler.scale(loss), parameters, retain_graph=True)
            flat.append(torch.cat([g.flatten() for g in grads]))
        total = project(flat[0], flat[1]) + project(flat[1], flat[0])
        start = 0
        for p in parameters:
            p.grad = total[start : start + p.numel()].view_as(p).clone()
            start += p.numel()
        scaler.step(optimizer)
        scaler.update()
        return losses[0].item()

    return step
