"""The model stands at module level, so every build trains the same weights.

Effect: no two runs of the step can be compared.
Source: the contract: each build is afresh.
"""

import torch
from torch import nn

EXPECT = ("AMP111",)
UNLOCATED = True  # the line is that of the function that builds, which is the test's here

torch.manual_seed(112)
SHARED = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def build(broken, device="cpu"):
    torch.manual_seed(112)
    model = SHARED if broken else nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**6)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        scaler.scale(nn.functional.mse_loss(out.float(), y)).backward()
        scaler.step(optimizer)
        scaler.update()

    return step
