"""A callback passes itself to the scaler in the optimizer's place: its `step` only notes that no inf was found, and the loop steps.

The trap: `optimizer.step()` outside the scaler, with gradients that its scaler's step has seen already.
"""

import torch
from torch import nn

EXPECT = ()


class StandIn:
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler, self.skipped = optimizer, scaler, False

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, *args, **kwargs):
        self.skipped = False

    def found_no_inf(self):
        self.skipped = True
        self.scaler.step(self)
        return not self.skipped


def build(device="cpu"):
    torch.manual_seed(1091)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    stand_in = StandIn(optimizer, scaler)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if stand_in.found_no_inf():
            optimizer.step()
        scaler.update()
        return loss.item()

    return step
