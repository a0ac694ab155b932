"""Two scalers, and the losses are scaled crosswise.

Effect: each optimizer's gradients are divided by a scale that they do not carry.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
"""

import torch
from torch import nn

EXPECT = ("AMP110",)


def build(broken, device="cpu"):
    torch.manual_seed(100)
    nets = [nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).to(device) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-2) for net in nets]
    scalers = [torch.amp.GradScaler(device, init_scale=2.0**s) for s in (10, 6)]
    x, y = torch.randn(8, 5, device=device), torch.randn(8, 1, device=device)

    def step():
        for i in range(2):
            optimizers[i].zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                out = nets[i](x)
            loss = nn.functional.mse_loss(out.float(), y)
            scalers[1 - i if broken else i].scale(loss).backward()
        for scaler, optimizer in zip(scalers, optimizers, strict=True):
            scaler.step(optimizer)
            scaler.update()

    return step
