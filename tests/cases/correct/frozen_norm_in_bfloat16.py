"""A frozen bfloat16 backbone with a LayerNorm, in training mode, under an FP32 head that is trained.

The trap: the norm's parameters are in 16 bits; nothing trains them, and it keeps no statistics.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1208)
    backbone = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU()).to(device).bfloat16().requires_grad_(False)
    head = nn.Linear(16, 8).to(device)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = head(backbone(x))
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
