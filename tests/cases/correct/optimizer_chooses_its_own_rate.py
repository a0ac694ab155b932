"""An optimizer in the manner of Adafactor: no learning rate is given, it follows from the step and the size of the weights.

The trap: the rate of its groups is None.
"""

import torch
from torch import nn
from torch.nn import functional as F

EXPECT = ()


class Relative(torch.optim.Optimizer):
    def __init__(self, parameters, lr=None, momentum=None):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "betas": (None, 0.99)})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"], state["square"] = 0, torch.zeros_like(p)
                state["step"] += 1
                state["square"].lerp_(p.grad.square(), 1.0 - group["betas"][1])
                rate = min(1e-2, state["step"] ** -0.5) * p.square().mean().sqrt().clamp(min=1e-3)
                p.sub_(rate * p.grad / (state["square"].sqrt() + 1e-8))


def build(device="cpu"):
    torch.manual_seed(1204)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
    optimizer = Relative(model.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(16, 16, device=device), torch.randint(0, 8, (16,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
