"""Each gradient is clipped as soon as autograd has accumulated it, in a post-accumulate hook, so while it is scaled.

Effect: every tensor is cut to a norm of `limit / scale`.
Source: PyTorch docs, "Working with Unscaled Gradients"; `torch.Tensor.register_post_accumulate_grad_hook`.
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


def build(broken, device="cpu"):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**11)
    x, y = torch.randn(10, 8, device=device), torch.randint(0, 3, (10,), device=device)

    def clip(p):
        limit = 0.05 if broken else 0.05 * scaler.get_scale()
        p.grad.mul_((limit / p.grad.norm().clamp(min=1e-12)).clamp(max=1.0))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(clip)

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
