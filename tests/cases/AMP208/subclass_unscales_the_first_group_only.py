"""A subclass of GradScaler overrides `unscale_` for speed and leaves out all but the first group.

Effect: the other groups step with scaled gradients, and their infinities are not seen.
Source: PyTorch docs, `torch.amp.GradScaler.unscale_`.
"""

import torch
from torch import nn

EXPECT = ("AMP208", "AMP101", "AMP201", "AMP106")


class FirstGroup(torch.amp.GradScaler):
    first_only = False

    def unscale_(self, optimizer):
        groups = optimizer.param_groups
        held = []
        if self.first_only:
            for group in groups[1:]:
                for p in group["params"]:
                    held.append((p, p.grad))
                    p.grad = None
        super().unscale_(optimizer)
        for p, grad in held:
            p.grad = grad


def build(broken, device="cpu"):
    torch.manual_seed(283)
    body, head = nn.Linear(6, 8).to(device), nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD([{"params": body.parameters()}, {"params": head.parameters()}], lr=1e-3)
    scaler = FirstGroup(device, init_scale=2.0**6)
    scaler.first_only = broken
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = head(body(x).tanh())
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
