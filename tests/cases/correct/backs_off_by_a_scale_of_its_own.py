"""The loop looks at the unscaled norm itself: where it is not finite it takes no step and gives `update` half the scale.

The trap: no `update()` of the scaler's own after an overflow. Right: the scale falls all the same, and nothing else moves.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1002)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm.isfinite():
            scaler.step(optimizer)
            scaler.update()
        else:
            scaler.update(max(1.0, 0.5 * scaler.get_scale()))
        return loss.item()

    return step
