"""The scaler is enabled by a string comparison that never holds.

Effect: `enabled=False` makes every method a pass-through, without a word.
Source: PyTorch docs, `torch.amp.GradScaler(enabled)`.
"""

import torch
from torch import nn

EXPECT = ("AMP207", "AMP505")


def build(broken, device="cpu"):
    torch.manual_seed(261)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    precision = "fp16" if broken else "float16"
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, enabled=precision == "float16")
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
