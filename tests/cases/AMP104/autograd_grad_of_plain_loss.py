"""Gradients come from `torch.autograd.grad` of the loss as it is and are assigned; the scaler then divides them.

Effect: the scaler, warmed up by another loss, makes them smaller by the scale.
Source: PyTorch docs, `torch.amp.GradScaler.scale`.
"""

import torch
from torch import nn

EXPECT = ("AMP104",)


def build(broken, device="cpu"):
    torch.manual_seed(33)
    model = nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 2)).to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**9)
    x, y = torch.randn(8, 7, device=device), torch.randn(8, 2, device=device)

    def step():
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaled = scaler.scale(loss)
        grads = torch.autograd.grad(loss if broken else scaled, parameters)
        for p, g in zip(parameters, grads, strict=True):
            p.grad = g
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
