"""The scaled loss is divided by the scale before backward, "so that the log is right".

Effect: gradients have no scale when the scaler divides them.
Source: PyTorch docs, `torch.amp.GradScaler.scale`.
"""

import torch
from torch import nn

EXPECT = ("AMP104",)


def build(broken, device="cpu"):
    torch.manual_seed(35)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**6)
    x, y = torch.randn(11, 5, device=device), torch.randint(0, 3, (11,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = scaler.scale(nn.functional.cross_entropy(logits.float(), y))
        if broken:
            loss = loss / scaler.get_scale()
        loss.backward()
        value = loss.item() if broken else loss.item() / scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        return value

    return step
