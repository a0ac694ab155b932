"""`torch.set_autocast_enabled(True)` by hand before the forward, without its counterpart.

Effect: everything after the first step runs under autocast.
Source: PyTorch docs, `torch.autocast`: a context manager or decorator.
"""

import torch
from torch import nn

EXPECT = ("AMP311",)


def build(broken, device="cpu"):
    torch.manual_seed(311)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, torch.bfloat16)
        out = model(x)
        if not broken:
            torch.set_autocast_enabled(device, False)
            torch.clear_autocast_cache()
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
