"""`update()` follows every micro-batch, `step` only every second one.

Effect: torch raises on the first micro-batch, since nothing was unscaled; with `unscale_` the scale would change in the window.
Source: PyTorch docs, "Gradient accumulation": the scale is held over a window.
"""

import torch
from torch import nn

EXPECT = ("AMP107", "AMP105")


def build(broken, device="cpu"):
    torch.manual_seed(70)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(2, 7, 6, device=device), torch.randn(2, 7, 2, device=device)

    def step():
        for i in range(2):
            with torch.autocast(device, dtype=torch.float16):
                out = model(x[i])
            loss = nn.functional.mse_loss(out.float(), y[i]) / 2
            scaler.scale(loss).backward()
            if i == 1:
                scaler.step(optimizer)
                optimizer.zero_grad()
            if broken or i == 1:
                scaler.update()

    return step
