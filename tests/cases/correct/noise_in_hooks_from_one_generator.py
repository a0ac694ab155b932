"""Gradient noise is added in accumulation hooks that all draw from one generator.

The trap: casts change the order in which autograd finishes gradients, so in 16 bits each parameter gets the noise that another got
in FP32. Noise is noise; nothing is wrong.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1061)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator(device).manual_seed(7)
    x, y = torch.randn(32, 16, device=device), torch.randint(0, 8, (32,), device=device)

    def add_noise(p):
        p.grad.add_(torch.randn(p.shape, generator=generator, device=device), alpha=0.01)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(add_noise)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
