"""A head was added to the optimizer later; clearing goes through a list of the old parameters.

Effect: the head's gradients pile up over all steps.
Source: PyTorch docs, `torch.optim.Optimizer.add_param_group` and `zero_grad`.
"""

import torch
from torch import nn

EXPECT = ("AMP109",)


def build(broken, device="cpu"):
    torch.manual_seed(94)
    body, head = nn.Linear(6, 8).to(device), nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
    old = list(body.parameters())
    optimizer.add_param_group({"params": head.parameters(), "lr": 0.01})
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        for p in old if broken else [*old, *head.parameters()]:
            p.grad = None
        with torch.autocast(device, dtype=torch.float16):
            out = head(body(x).tanh())
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
