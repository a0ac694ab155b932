"""A subclass of GradScaler unscales and clips in `step`, then passes on.

The trap: `unscale_` inside `step`, by a class that is not torch's.
"""

import torch
from torch import nn

EXPECT = ()


class Clipping(torch.amp.GradScaler):
    def step(self, optimizer, *args, **kwargs):
        self.unscale_(optimizer)
        nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.3)
        return super().step(optimizer, *args, **kwargs)


def build(device="cpu"):
    torch.manual_seed(1115)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = Clipping(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

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
