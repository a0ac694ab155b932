"""Two scalers; after the second step the first is updated again.

Effect: the second scaler is never updated, and its optimizer raises in the next call.
Source: PyTorch docs, `torch.amp.GradScaler.update`.
"""

import torch
from torch import nn

EXPECT = ("AMP105",)


def build(broken, device="cpu"):
    torch.manual_seed(66)
    nets = [nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1)).to(device) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-2) for net in nets]
    scalers = [torch.amp.GradScaler(device, init_scale=s) for s in (2.0**10, 2.0**8)]
    x, y = torch.randn(8, 5, device=device), torch.randn(8, 1, device=device)

    def step():
        for i, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                out = net(x)
            scalers[i].scale(nn.functional.mse_loss(out.float(), y)).backward()
            scalers[i].step(optimizer)
            if not broken:
                scalers[i].update()
        if broken:
            scalers[0].update()

    return step
