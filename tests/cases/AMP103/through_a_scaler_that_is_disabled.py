"""One scaler scales the loss, and the step goes through another one, which is disabled and only hands it on.

Effect: the optimizer uses scaled gradients, and nothing looks for overflow.
Source: PyTorch docs, `torch.amp.GradScaler(enabled=False)`: `step` simply invokes the optimizer's.
"""

import torch
from torch import nn

EXPECT = ("AMP103",)


def build(broken, device="cpu"):
    torch.manual_seed(1307)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    stepping = torch.amp.GradScaler(device, enabled=False) if broken else scaler
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        stepping.step(optimizer)
        stepping.update()
        return loss.item()

    return step
