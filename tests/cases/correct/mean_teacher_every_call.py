"""A mean teacher follows the student, whose weights have not moved, in a skipped call as well; its decay is constant.

The trap: an average that moves on a skip; a choice of some frameworks, a warning at most.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1012)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    teacher = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device).requires_grad_(False)
    teacher.load_state_dict(model.state_dict())

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for t, p in zip(teacher.parameters(), model.parameters(), strict=True):
                t.mul_(0.9).add_(p, alpha=0.1)
        return loss.item()

    return step
