"""The scaler's state is loaded from the start of the run at the head of every call.

Effect: the scale does not grow, and is back at its first value after each overflow.
Source: PyTorch docs, `torch.amp.GradScaler.load_state_dict`: for a run that is resumed.
"""

import torch
from torch import nn

EXPECT = ("AMP203", "AMP202")


def build(broken, device="cpu"):
    torch.manual_seed(1212)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    saved = scaler.state_dict()
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        if broken:
            scaler.load_state_dict(saved)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
