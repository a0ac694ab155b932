"""The whole iteration, backward included, stands inside the autocast block.

Effect: backward ops that autocast would cast run under it; torch advises against it.
Source: PyTorch docs, `torch.autocast`: backward passes under autocast are not recommended.
"""

import torch
from torch import nn

EXPECT = ("AMP108",)


def build(broken, device="cpu"):
    torch.manual_seed(80)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
            loss = nn.functional.mse_loss(out.float(), y)
            if broken:
                scaler.scale(loss).backward()
        if not broken:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
