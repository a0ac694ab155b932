"""The loss that is reported is a running total kept in bfloat16.

Effect: beyond 256 times a term nothing is added any more; training is right, the curve that is looked at is not.
Source: Micikevicius et al., "Mixed Precision Training", section 3.3: reductions are accumulated in FP32.
"""

import torch
from torch import nn

EXPECT = ("AMP501", "AMP304")


def build(broken, device="cpu"):
    torch.manual_seed(501)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(700, 6, device=device), torch.randn(700, 1, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x)
        losses = nn.functional.mse_loss(out.float(), y, reduction="none")
        losses.mean().backward()
        optimizer.step()
        total = torch.zeros((), dtype=torch.bfloat16 if broken else torch.float32, device=device)
        for loss in losses.detach().flatten():
            total += loss.to(total.dtype)
        return {"total": total.item()}

    return step
