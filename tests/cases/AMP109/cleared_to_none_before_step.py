"""`zero_grad()` between backward and `scaler.step`: the gradients are None.

Effect: the scaler raises that no inf checks were recorded.
Source: PyTorch docs, `torch.optim.Optimizer.zero_grad`.
"""

import torch
from torch import nn

EXPECT = ("AMP109",)


def build(broken, device="cpu"):
    torch.manual_seed(92)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)

    def step():
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if broken:
            optimizer.zero_grad()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step
