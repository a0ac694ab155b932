"""A part of the model is unfrozen in the third call, under a fused optimizer that is called on skipped steps too.

The trap: "the optimizer has more state after a skipped step". Fused optimizers make the state of a parameter when they are first called with its
gradient, whether the step is taken or not; it is all zeros then, and the next step starts as it would have.
Source: PyTorch docs, "Automatic Mixed Precision examples"; `torch.optim.AdamW(fused=True)`.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    calls = 0

    def step():
        nonlocal calls
        calls += 1
        model[0].requires_grad_(calls > 2)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
