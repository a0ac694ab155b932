"""The head's optimizer is stepped by a post-step hook of the body's, which the scaler steps.

Effect: the head moves by gradients that are larger by the scale.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers": `scaler.step` for each optimizer.
"""

import torch
from torch import nn

EXPECT = ("AMP103",)


def build(broken, device="cpu"):
    torch.manual_seed(1210)
    body, head = nn.Sequential(nn.Linear(8, 16), nn.GELU()).to(device), nn.Linear(16, 8).to(device)
    first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (body, head))
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)
    if broken:
        first.register_step_post_hook(lambda optimizer, args, kwargs: second.step())

    def step():
        first.zero_grad()
        second.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = head(body(x))
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(first)
        if not broken:
            scaler.step(second)
        scaler.update()
        return loss.item()

    return step
