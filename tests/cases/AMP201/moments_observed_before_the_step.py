"""The optimizer takes gradients into its momentum in a method of its own, which the loop calls before `scaler.step`.

Effect: an inf stays in the momentum, and the first step that is taken after it ruins the weights.
Source: PyTorch docs, `torch.amp.GradScaler.step`: what a skipped step must not move is what `optimizer.step` moves.
"""

import torch
from torch import nn

EXPECT = ("AMP201",)


class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters, lr, observes):
        super().__init__(parameters, {"lr": lr})
        self.observes = observes

    @torch.no_grad()
    def observe(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["mean"] = self.state[p].get("mean", torch.zeros_like(p)).lerp(p.grad, 0.1)

    @torch.no_grad()
    def step(self):
        if self.observes:
            self.observe()
        for p in self.param_groups[0]["params"]:
            p.sub_(self.param_groups[0]["lr"] * self.state[p]["mean"])


def build(broken, device="cpu"):
    torch.manual_seed(1213)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    optimizer = Momentum(model.parameters(), lr=0.1, observes=not broken)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if broken:
            optimizer.observe()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
