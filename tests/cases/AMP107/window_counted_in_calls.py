"""The accumulation factor rises during training, but the end of a window is tested on the total count.

Effect: some windows hold other numbers of micro-batches than their losses are divided by.
Source: PyTorch docs, "Gradient accumulation".
"""

import torch
from torch import nn

EXPECT = ("AMP107",)


def build(broken, device="cpu"):
    torch.manual_seed(73)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    seen = {"batch": 0, "window": 0, "size": 2}

    def micro():
        if broken or seen["window"] == 0:
            seen["size"] = 2 + seen["batch"] // 5
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y) / seen["size"]
        scaler.scale(loss).backward()
        seen["batch"] += 1
        seen["window"] += 1
        full = seen["batch"] % seen["size"] == 0 if broken else seen["window"] == seen["size"]
        if full:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            seen["window"] = 0

    def step():
        for _ in range(4):
            micro()

    return step
