"""Gradients come from `torch.func.grad` of the scaled loss of a functional call.

The trap: no backward is called, and gradients are assigned by hand.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1117)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def objective(p):
            with torch.autocast(device, dtype=torch.float16):
                out = torch.func.functional_call(model, p, (x,))
            return scaler.scale(nn.functional.mse_loss(out.float(), y))

        grads = torch.func.grad(objective)(parameters)
        for name, p in model.named_parameters():
            p.grad = grads[name].detach()
        scaler.step(optimizer)
        scaler.update()

    return step
