"""float16 autocast with a plain backward and a plain step.

Effect: small gradients underflow to zero.
Source: Micikevicius et al., "Mixed Precision Training", 2018, section 3.2.
"""

import torch
from torch import nn

EXPECT = ("AMP207", "AMP505")


def build(broken, device="cpu"):
    torch.manual_seed(260)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    dtype = torch.float16 if broken else torch.bfloat16

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
