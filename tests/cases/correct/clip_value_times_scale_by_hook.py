"""Tensor hooks clamp scaled gradients at a threshold in units of the scale, before autograd adds them up.

The trap: a clip before `unscale_`. Right: the threshold carries the scale as the gradients do, and an inf stays one.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1000)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def clamp(grad):
        limit = 0.05 * scaler.get_scale()
        return torch.where(grad.isfinite(), grad.clamp(-limit, limit), grad)

    for p in model.parameters():
        p.register_hook(clamp)

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
