"""After each step the model is cast to half precision for an export, and back.

Effect: the weights that go on training are the rounded ones; updates below half a unit in the last place are lost.
Source: Micikevicius et al., "Mixed Precision Training", 2018, section 3.1: an FP32 master copy accumulates the updates.
"""

import copy

import torch
from torch import nn

EXPECT = ("AMP307",)


def build(broken, device="cpu"):
    torch.manual_seed(1240)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if broken:
            exported = [p.detach().clone() for p in model.half().parameters()]
            model.float()
        else:
            exported = [p.detach() for p in copy.deepcopy(model).half().parameters()]
        return loss.item(), len(exported)

    return step
