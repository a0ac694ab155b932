"""bfloat16; where the norm is not finite the gradients are set to None, so that the step does nothing.

The trap: gradients cleared between backward and step.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1041)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward()
        if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
            optimizer.zero_grad()
        optimizer.step()
        return loss.item()

    return step
