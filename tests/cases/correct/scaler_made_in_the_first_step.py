"""The scaler is made lazily, when the first loss is there.

The trap: no scaler after the build; one is made inside `step`.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1016)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    held = {}

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        if "scaler" not in held:
            held["scaler"] = torch.amp.GradScaler(loss.device.type, init_scale=2.0**10)
        held["scaler"].scale(loss).backward()
        held["scaler"].step(optimizer)
        held["scaler"].update()
        return loss.item()

    return step
