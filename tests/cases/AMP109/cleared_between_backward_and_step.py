"""`zero_grad(set_to_none=False)` between backward and step.

Effect: the optimizer steps with zeros; with AdamW only the weight decay is left.
Source: PyTorch docs, `torch.optim.Optimizer.zero_grad`.
"""

import torch
from torch import nn

EXPECT = ("AMP109",)


def build(broken, device="cpu"):
    torch.manual_seed(91)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        if not broken:
            optimizer.zero_grad(set_to_none=False)
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if broken:
            optimizer.zero_grad(set_to_none=False)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
