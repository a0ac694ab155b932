"""After three calls the optimizer is replaced by another, with the same parameters.

The trap: an optimizer that appears in the middle, and one that is stepped no more.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1019)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    seen = {"calls": 0, "optimizer": optimizer}

    def step():
        seen["calls"] += 1
        if seen["calls"] == 3:
            seen["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-3)
        seen["optimizer"].zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(seen["optimizer"])
        scaler.update()
        return loss.item()

    return step
