"""The optimizer owns its scaler: its own `step` unscales, clips, looks for an overflow and updates the scale.

The trap: `step` is entered with gradients that carry the scale, outside of any `scaler.step`, and returns on a skip as on a step.
"""

import torch
from torch import nn

EXPECT = ()


class Scaling(torch.optim.SGD):
    def __init__(self, params, device, **how):
        super().__init__(params, **how)
        self.scaler, self.taken = torch.amp.GradScaler(device, init_scale=2.0**8), 0

    def step(self, closure=None):
        self.scaler.unscale_(self)
        params = [p for group in self.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(params, 0.1)
        if bool(norm.isfinite()):
            super().step(closure)
            self.taken += 1
        self.scaler.update()


def build(device="cpu"):
    torch.manual_seed(1095)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = Scaling(model.parameters(), device, lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        optimizer.scaler.scale(loss).backward()
        before = optimizer.taken
        optimizer.step()
        if optimizer.taken > before:
            schedule.step()
        return loss.item()

    return step
