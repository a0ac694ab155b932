"""An optimizer says that it unscales by itself (`_step_supports_amp_scaling`), but forgets to divide by `grad_scale`.

Effect: the scaler hands over scaled gradients, and they are used as they are.
Source: torch.amp.GradScaler.step: such an optimizer receives `grad_scale` and `found_inf`.
"""

import torch
from torch import nn

EXPECT = ("AMP101", "AMP103")


class Descent(torch.optim.Optimizer):
    _step_supports_amp_scaling = True

    def __init__(self, params, lr, divides):
        super().__init__(params, {"lr": lr})
        self.divides = divides

    @torch.no_grad()
    def step(self, closure=None):
        scale, skip = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if skip is not None and bool(skip):
            return
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad if scale is None or not self.divides else p.grad / scale
                p.add_(grad, alpha=-group["lr"])


def build(broken, device="cpu"):
    torch.manual_seed(50)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = Descent(model.parameters(), 1e-2, divides=not broken)
    scaler = torch.amp.GradScaler(device, init_scale=16.0)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
