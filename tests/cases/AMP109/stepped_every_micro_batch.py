"""The step is taken after every micro-batch, the gradients are cleared after every second one.

Effect: scaled gradients are added to unscaled ones that were used already.
Source: PyTorch docs, "Gradient accumulation".
"""

import torch
from torch import nn

EXPECT = ("AMP109", "AMP103")


def build(broken, device="cpu"):
    torch.manual_seed(1103)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        for i in range(2):
            with torch.autocast(device, dtype=torch.float16):
                out = model(x + i)
            loss = nn.functional.mse_loss(out.float(), y) / 2
            scaler.scale(loss).backward()
            if broken or i == 1:
                scaler.step(optimizer)
                scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step
