"""The clip's `unscale_` goes to the scaler of the other model; the step to the right one.

Effect: gradients are divided by both scales.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
"""

import torch
from torch import nn

EXPECT = ("AMP110", "AMP106")


def build(broken, device="cpu"):
    torch.manual_seed(102)
    nets = [nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1)).to(device) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-2) for net in nets]
    scalers = [torch.amp.GradScaler(device, init_scale=2.0**s) for s in (9, 9)]
    x, y = torch.randn(8, 5, device=device), torch.randn(8, 1, device=device)

    def step():
        for i in range(2):
            optimizers[i].zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                out = nets[i](x)
            scalers[i].scale(nn.functional.mse_loss(out.float(), y)).backward()
        for i in range(2):
            scalers[0 if broken else i].unscale_(optimizers[i])
            nn.utils.clip_grad_norm_(nets[i].parameters(), 50.0)
            scalers[i].step(optimizers[i])
        for scaler in scalers:
            scaler.update()

    return step
