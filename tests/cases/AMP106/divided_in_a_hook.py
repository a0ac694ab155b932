"""Parameter hooks divide each gradient by the scale as it arrives, and the scaler divides it again.

Effect: updates are smaller by the scale.
Source: PyTorch docs, `torch.amp.GradScaler.step`: it unscales what was not unscaled by `unscale_`.
"""

import torch
from torch import nn

EXPECT = ("AMP106",)


def build(broken, device="cpu"):
    torch.manual_seed(44)
    model = nn.Sequential(nn.Linear(6, 10), nn.SiLU(), nn.Linear(10, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(9, 6, device=device), torch.randint(0, 3, (9,), device=device)
    seen = []

    def watch(grad):
        seen.append(float(grad.norm()) / scaler.get_scale())
        return grad / scaler.get_scale() if broken else None

    for p in model.parameters():
        p.register_hook(watch)

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
