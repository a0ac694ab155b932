"""An R1 penalty every second call: slopes from the scaled sum are divided by the scale, the penalty is scaled again.

The trap: second derivatives through scaled gradients, and calls that differ.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1022)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        optimizer.zero_grad()
        inputs = x.clone().requires_grad_(seen["calls"] % 2 == 0)
        with torch.autocast(device, dtype=torch.float16):
            out = model(inputs)
        loss = nn.functional.mse_loss(out.float(), y)
        if inputs.requires_grad:
            (slope,) = torch.autograd.grad(scaler.scale(out.float().sum()), inputs, create_graph=True)
            loss = loss + 0.1 * (slope / scaler.get_scale()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
