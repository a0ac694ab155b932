"""Two groups of parameters: a fused AdamW and a foreach Adam with tensor learning rate, on one scaler.

The trap: fused optimizers divide by the scale inside their kernel, and are called on a skip.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1036)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.AdamW(model[0].parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    other = torch.optim.Adam(model[2].parameters(), lr=torch.tensor(1e-3), foreach=False)

    def step():
        optimizer.zero_grad()
        other.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(other)
        scaler.update()
        return loss.item()

    return step
