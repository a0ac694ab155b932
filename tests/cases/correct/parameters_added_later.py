"""A frozen layer is thawed and joins the optimizer in the third call, by `add_param_group`.

The trap: parameters without gradients at first, and more parameters later.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1020)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    model[0].requires_grad_(False)
    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        if seen["calls"] == 3:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
