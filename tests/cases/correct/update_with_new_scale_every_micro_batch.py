"""The same cap is set again after every micro-batch, also inside a window: it changes nothing there.

The trap: `update(new_scale)` inside an accumulation window. Right: the scale is what it was.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1015)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**9, growth_interval=1000)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        for i in range(3):
            with torch.autocast(device, dtype=torch.float16):
                out = model(x + i)
            loss = nn.functional.mse_loss(out.float(), y) / 3
            scaler.scale(loss).backward()
            if i == 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            scaler.update(min(scaler.get_scale(), 2.0**15))
        return loss.item()

    return step
