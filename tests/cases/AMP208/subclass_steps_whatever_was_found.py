"""A subclass of GradScaler counts the skips, in the method that torch's own `step` asks, and forgets to skip.

Effect: gradients that are not finite go into the weights.
Source: PyTorch docs, `torch.amp.GradScaler.step`.
"""

import torch
from torch import nn

EXPECT = ("AMP208",)


class Counting(torch.amp.GradScaler):
    def __init__(self, device, skips, **how):
        super().__init__(device, **how)
        self.skips, self.count = skips, 0

    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        bad = any(float(v) for v in optimizer_state["found_inf_per_device"].values())
        self.count += bad
        if bad and self.skips:
            return None
        return optimizer.step(*args, **kwargs)


def build(broken, device="cpu"):
    torch.manual_seed(1304)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = Counting(device, not broken, init_scale=2.0**8)
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
