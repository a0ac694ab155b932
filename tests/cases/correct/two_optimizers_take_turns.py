"""Two optimizers over the same parameters take turns.

The trap: each leaves gradients that the other one finds.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1120)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    other = torch.optim.Adam(model.parameters(), lr=1e-3)
    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        turn = optimizer if seen["calls"] % 2 else other
        turn.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(turn)
        scaler.update()
        return loss.item()

    return step
