"""Gradients of each example by `vmap(grad(...))` of the scaled loss; clipped and averaged at one example's norm times the scale.

The trap: inside `vmap` a backward runs whose numbers cannot be read.
"""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1203)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def scaled_loss(parameters, one, target):
        with torch.autocast(device, dtype=torch.float16):
            out = functional_call(model, parameters, (one[None],))
        return scaler.scale(nn.functional.mse_loss(out.float(), target[None]))

    def step():
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        grads = vmap(grad(scaled_loss), in_dims=(None, 0, 0))(parameters, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        weights = (0.5 * scaler.get_scale() / norms).clamp(max=1.0) / len(x)
        for name, p in model.named_parameters():
            p.grad = torch.einsum("b,b...->...", weights, grads[name])
        scaler.step(optimizer)
        scaler.update()

    return step
