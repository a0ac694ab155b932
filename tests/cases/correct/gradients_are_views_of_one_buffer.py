"""All gradients are views of one flat buffer, which two optimizers share and which is cleared as a whole.

The trap: gradients that are never None, and one storage and version for all of them.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1119)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    other = torch.optim.AdamW(model[2].parameters(), lr=1e-3)
    flat = torch.zeros(sum(p.numel() for p in model.parameters()), device=device)
    start = 0
    for p in model.parameters():
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()

    def step():
        flat.zero_()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(other)
        scaler.update()
        return loss.item()

    return step
