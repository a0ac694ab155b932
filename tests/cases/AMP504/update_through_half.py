"""An optimizer hands its updates over through a float16 buffer, to halve the traffic.

Effect: with a small learning rate most updates are below what a half can hold and vanish; the gradients are right.
Source: IEEE 754-2019, binary16: the smallest subnormal is 2^-24.
"""

import torch
from torch import nn

EXPECT = ("AMP504",)


class Compressed(torch.optim.Optimizer):
    def __init__(self, params, lr, dtype):
        super().__init__(params, {"lr": lr})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_((p.grad * group["lr"]).to(self.dtype).to(p.dtype))


def build(broken, device="cpu"):
    torch.manual_seed(504)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3)).to(device)
    with torch.no_grad():  # small weights: FP32 itself has digits enough for such updates
        for p in model.parameters():
            p.mul_(0.01)
    optimizer = Compressed(model.parameters(), lr=3e-7, dtype=torch.float16 if broken else torch.float32)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(30, 8, device=device), torch.randint(0, 3, (30,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
