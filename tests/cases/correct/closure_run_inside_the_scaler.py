"""A subclass of GradScaler whose `step` hands the optimizer a closure that clears, scales, and unscales; the optimizer skips by itself.

The trap: when `scaler.step` begins, the gradients are still those of the call before.
"""

import torch
from torch import nn
from torch.amp.grad_scaler import OptState

EXPECT = ()


class ClosureScaler(torch.amp.GradScaler):
    def step(self, optimizer, closure):
        def unscaled():
            optimizer.zero_grad()
            self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY
            loss = closure()
            self.unscale_(optimizer)
            found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            return None if any(float(v) for v in found.values()) else loss

        return optimizer.step(unscaled)


class Ascending(torch.optim.Optimizer):
    def __init__(self, params, lr, rho):
        super().__init__(params, {"lr": lr, "rho": rho})

    @torch.no_grad()
    def step(self, closure):
        group = self.param_groups[0]
        first = torch.enable_grad()(closure)()
        if first is None:
            return None
        old = [p.clone() for p in group["params"]]
        for p in group["params"]:
            p.add_(p.grad / p.grad.norm(), alpha=group["rho"])
        second = torch.enable_grad()(closure)()
        for p, before in zip(group["params"], old, strict=True):
            p.copy_(before)
            if second is not None:
                p.sub_(p.grad, alpha=group["lr"])
        return first


def build(device="cpu"):
    torch.manual_seed(1094)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = Ascending(model.parameters(), lr=0.1, rho=0.05)
    scaler = ClosureScaler(device, init_scale=2.0**8)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def closure():
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        return loss.detach()

    def step():
        scaler.step(optimizer, closure)
        scaler.update()

    return step
