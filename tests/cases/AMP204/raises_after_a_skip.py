"""A watchdog ends the run as soon as a norm is not finite.

Effect: an ordinary overflow counts as divergence.
Source: PyTorch docs, `torch.amp.GradScaler`.
"""

import torch
from torch import nn

EXPECT = ("AMP204",)


class Watchdog:
    def __init__(self, patience):
        self.patience, self.bad = patience, 0

    def see(self, norm):
        self.bad = 0 if torch.isfinite(norm) else self.bad + 1
        if self.bad > self.patience:
            raise FloatingPointError(f"gradient norm is {norm}")


def build(broken, device="cpu"):
    torch.manual_seed(231)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    watchdog = Watchdog(0 if broken else 20)
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        watchdog.see(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
