"""The last micro-batch of a window runs in the closure of optimizer.step(), as some trainers do it; the schedule moves after each step.

The trap: the step begins before its last backward, so the backward of one window may be counted to the next, which is cleared and
has another learning rate.
"""

import torch
from torch import nn

EXPECT = ()
QUIET = ("AMP107", "AMP112")


def build(device="cpu"):
    torch.manual_seed(1062)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=40)
    x, y = torch.randn(4, 16, 16, device=device), torch.randint(0, 8, (4, 16), device=device)

    def micro_batch(at):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x[at])
        loss = nn.functional.cross_entropy(logits.float(), y[at]) / 2
        if at % 2 == 0:
            optimizer.zero_grad()
        loss.backward()
        return loss

    def step():  # one epoch of two windows
        for at in range(4):
            if at % 2 == 0:
                micro_batch(at)
            else:
                optimizer.step(lambda at=at: micro_batch(at))
                schedule.step()

    return step
