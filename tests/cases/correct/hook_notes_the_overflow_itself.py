"""Hooks of the parameters note what is not finite and clean it; the loop then skips and lowers the scale by itself.

The trap: nothing non-finite reaches the scaler. Right: nobody steps with what the hooks have cleaned.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1001)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    bad = []

    def clean(grad):
        bad.append(~grad.isfinite().all())
        return torch.where(grad.isfinite(), grad, torch.zeros_like(grad))

    for p in model.parameters():
        p.register_hook(clean)

    def step():
        bad.clear()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if torch.stack(bad).any():
            scaler.update(0.5 * scaler.get_scale())
        else:
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    return step
