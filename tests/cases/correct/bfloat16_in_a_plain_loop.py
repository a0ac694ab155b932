"""bfloat16 without a scaler, clipped, with a closure.

The trap: no scaler, and a closure in `step`.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1040)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        def closure():
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                out = model(x)
            loss = nn.functional.mse_loss(out.float(), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return loss

        return optimizer.step(closure).item()

    return step
