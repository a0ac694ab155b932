"""`clip_grad_value_` with the threshold times the scale, before the scaler looks.

The trap: a clip of scaled gradients. (It also puts a limit in the place of an inf: a warning at most.)
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1109)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.05 * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
