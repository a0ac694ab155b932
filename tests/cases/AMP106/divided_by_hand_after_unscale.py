"""After `unscale_` a helper that predates it divides by the scale once more, then clips.

Effect: gradients at the optimizer are smaller by the scale.
Source: PyTorch docs, `torch.amp.GradScaler.unscale_`.
"""

import torch
from torch import nn

EXPECT = ("AMP106",)


def build(broken, device="cpu"):
    torch.manual_seed(41)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**7)
    x = torch.randn(10, 8, device=device)

    def clip(parameters, limit, scale=1.0):
        grads = [p.grad for p in parameters]
        torch._foreach_div_(grads, scale)
        torch.nn.utils.clip_grad_norm_(parameters, limit)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), x)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(list(model.parameters()), 0.05, scaler.get_scale() if broken else 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
