"""The schedule is stepped unless the scaler's own record for the optimizer holds an inf.

The trap: private state of the scaler is read between step and update.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1010)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        state = scaler._per_optimizer_states[id(optimizer)]
        found = sum(f.item() for f in state["found_inf_per_device"].values())
        scaler.update()
        if not found:
            schedule.step()
        return loss.item()

    return step
