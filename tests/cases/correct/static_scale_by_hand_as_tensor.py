"""A constant loss scale kept as a tensor: multiplied in, divided out with foreach, stepped if all is finite.

The trap: fp16 without a scaler, and a direct step.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1006)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.tensor(512.0, device=device)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        (loss * scaler).backward()
        grads = [p.grad for p in model.parameters()]
        torch._foreach_div_(grads, scaler)
        if all(bool(g.isfinite().all()) for g in grads):
            optimizer.step()
        return loss.item()

    return step
