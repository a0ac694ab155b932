"""A layer-wise learning rate `|w| / (|g| + decay |w|)` is computed from scaled gradients and written into the groups.

Effect: the gradients are right at the optimizer, the learning rates are too small by about the scale.
Source: You et al., "Large Batch Training of Convolutional Networks", 2017; PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102", "AMP101")


def build(broken, device="cpu"):
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 5)).to(device)
    groups = [{"params": [p]} for p in model.parameters()]
    optimizer = torch.optim.SGD(groups, lr=0.1, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**14)
    x, y = torch.randn(16, 10, device=device), torch.randn(16, 5, device=device)

    def trust():
        for group in optimizer.param_groups:
            (p,) = group["params"]
            w, g = float(p.detach().norm()), float(p.grad.norm())
            group["lr"] = 0.1 * 0.02 * w / (g + group["weight_decay"] * w + 1e-9)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if broken:
            trust()
            scaler.unscale_(optimizer)
        else:
            scaler.unscale_(optimizer)
            trust()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
