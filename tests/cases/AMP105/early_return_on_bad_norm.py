"""After `unscale_` a non-finite norm makes the loop return early, before `step` and `update`.

Effect: an overflow leaves the scaler's state unscaled; the next iteration raises, and the scale never falls.
Source: PyTorch docs, `torch.amp.GradScaler.update`: also in iterations with overflow.
"""

import torch
from torch import nn

EXPECT = ("AMP105", "AMP202", "AMP106")


def build(broken, device="cpu"):
    torch.manual_seed(61)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if broken and not torch.isfinite(norm):
            return None
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
