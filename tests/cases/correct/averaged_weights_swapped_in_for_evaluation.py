"""The averaged weights are swapped in for an evaluation at the end of each call, and out again.

The trap: parameters change in a call whose step was skipped, and are put back.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1111)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    average = [p.detach().clone() for p in model.parameters()]

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            own = [p.clone() for p in model.parameters()]
            for p, a in zip(model.parameters(), average, strict=True):
                p.copy_(a)
            shown = model(x).mean().item()
            for p, o in zip(model.parameters(), own, strict=True):
                p.copy_(o)
        assert shown == shown
        return loss.item()

    return step
