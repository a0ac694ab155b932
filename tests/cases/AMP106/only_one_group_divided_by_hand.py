"""The backbone's group is divided by the scale by hand for layer-wise clipping; the head's is not; the scaler divides both.

Effect: the backbone's updates vanish, the head trains.
Source: PyTorch docs, `torch.amp.GradScaler.unscale_`.
"""

import torch
from torch import nn

EXPECT = ("AMP106",)


def build(broken, device="cpu"):
    torch.manual_seed(46)
    backbone, head = nn.Linear(8, 8).to(device), nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD([{"params": backbone.parameters()}, {"params": head.parameters(), "lr": 0.2}], lr=0.05)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**9)
    x, y = torch.randn(9, 8, device=device), torch.randint(0, 3, (9,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = head(backbone(x).relu())
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        for p in optimizer.param_groups[0]["params"]:
            if broken:
                p.grad = p.grad / scaler.get_scale()
            p.grad = p.grad.clamp(-5.0, 5.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
