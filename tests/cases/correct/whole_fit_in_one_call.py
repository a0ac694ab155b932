"""The contract's step is a whole training: five iterations, called once.

The trap: everything happens in one call.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1028)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                out = model(x)
            loss = nn.functional.mse_loss(out.float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    return ampcheck.Training(step, calls=1)
