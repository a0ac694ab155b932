"""The loop tests gradients for inf itself and steps the optimizer; it still calls `scaler.update()`.

Effect: the step uses scaled gradients, and `update()` refuses, since the scaler has looked at nothing.
Source: PyTorch docs, `torch.amp.GradScaler.step`: it is the one to look for inf, to unscale and to step.
"""

import torch
from torch import nn

EXPECT = ("AMP103",)


def build(broken, device="cpu"):
    torch.manual_seed(1211)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.step(optimizer)
        elif all(bool(p.grad.isfinite().all()) for p in model.parameters()):
            optimizer.step()
        scaler.update()
        return loss.item()

    return step
