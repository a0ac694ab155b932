"""The scaler is saved and loaded in every call, into a new object, as a preemptible job does.

The trap: a scaler that is made anew. Right: its state goes along.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1017)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    held = {"scaler": torch.amp.GradScaler(device, init_scale=2.0**10)}

    def step():
        scaler = torch.amp.GradScaler(device)
        scaler.load_state_dict(held["scaler"].state_dict())
        held["scaler"] = scaler
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
