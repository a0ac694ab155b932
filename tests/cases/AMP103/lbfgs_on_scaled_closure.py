"""LBFGS beside an Adam that goes through the scaler: its closure runs backward on the scaled loss.

Effect: the line search sees losses and gradients that do not fit together.
Source: PyTorch docs, `torch.amp.GradScaler.step`: closures are not supported; leave such an optimizer out of the scaling.
"""

import torch
from torch import nn

EXPECT = ("AMP103", "AMP101")


def build(broken, device="cpu"):
    torch.manual_seed(25)
    body, head = nn.Linear(6, 8).to(device), nn.Linear(8, 1).to(device)
    adam = torch.optim.Adam(body.parameters(), lr=1e-3)
    lbfgs = torch.optim.LBFGS(head.parameters(), lr=0.1, max_iter=2, history_size=3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**9)
    x, y = torch.randn(12, 6, device=device), torch.randn(12, 1, device=device)

    def step():
        adam.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = head(body(x).tanh())
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
        with torch.no_grad():
            features = body(x).tanh()

        def closure():
            lbfgs.zero_grad()
            inner = nn.functional.mse_loss(head(features), y)
            (scaler.scale(inner) if broken else inner).backward()
            return inner

        lbfgs.step(closure)
        return loss.item()

    return step
