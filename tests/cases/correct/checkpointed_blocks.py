"""Both layers are recomputed in backward, inside their own autocast region.

The trap: a forward, and a region, inside backward.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1043)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            hidden = checkpoint(model[:2], x, use_reentrant=False)
            out = checkpoint(model[2], hidden, use_reentrant=False)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
