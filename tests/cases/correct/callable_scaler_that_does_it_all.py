"""One call scales, runs backward, clips, steps and updates, in a class that holds torch's scaler.

The trap: the loop itself shows none of these calls.
"""

import torch
from torch import nn

EXPECT = ()


class Native:
    def __init__(self, device):
        self.inner = torch.amp.GradScaler(device, init_scale=2.0**10)

    def __call__(self, loss, optimizer, parameters, clip=None, last=True):
        self.inner.scale(loss).backward()
        if last:
            if clip is not None:
                self.inner.unscale_(optimizer)
                nn.utils.clip_grad_norm_(parameters, clip)
            self.inner.step(optimizer)
            self.inner.update()


def build(device="cpu"):
    torch.manual_seed(1116)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = Native(device)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        for i in range(2):
            with torch.autocast(device, dtype=torch.float16):
                out = model(x + i)
            loss = nn.functional.mse_loss(out.float(), y) / 2
            scaler(loss, optimizer, model.parameters(), clip=0.5, last=i == 1)
        optimizer.zero_grad()
        return loss.item()

    return step
