"""Two optimizers, each with scale, backward, step and an update of its own, on one scaler.

Effect: the scale grows twice as fast as its interval says, and an overflow of one is followed by a clean update of the other.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
"""

import torch
from torch import nn

EXPECT = ("AMP105", "AMP110")


def build(broken, device="cpu"):
    torch.manual_seed(65)
    nets = [nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).to(device) for _ in range(2)]
    optimizers = [torch.optim.RMSprop(net.parameters(), lr=1e-3) for net in nets]
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 5, device=device), torch.randn(8, 1, device=device)

    def step():
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                out = net(x)
            scaler.scale(nn.functional.mse_loss(out.float(), y)).backward()
            scaler.step(optimizer)
            if broken:
                scaler.update()
        if not broken:
            scaler.update()

    return step
