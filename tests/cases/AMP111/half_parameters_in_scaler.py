"""The model was cast by `.half()`, and torch's scaler refuses to unscale half gradients.

Effect: "Attempting to unscale FP16 gradients" in the first call.
Source: PyTorch docs, `torch.autocast`: do not call half() on the model.
"""

import torch
from torch import nn

EXPECT = ("AMP307", "AMP111")


def build(broken, device="cpu"):
    torch.manual_seed(111)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    if broken:
        model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**6)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
