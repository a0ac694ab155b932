"""Gradient noise of a fixed size is added in tensor hooks, so to scaled gradients.

Effect: the noise is divided by the scale and has no effect.
Source: Neelakantan et al., "Adding Gradient Noise Improves Learning", 2015; PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


def build(broken, device="cpu"):
    torch.manual_seed(13)
    model = nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
    x, y = torch.randn(14, 8, device=device), torch.randn(14, 2, device=device)

    def noisy(seed):
        source = torch.Generator(device).manual_seed(seed)  # one each: the order in which gradients arrive is autograd's own

        def add(grad):
            size = 0.01 if broken else 0.01 * scaler.get_scale()
            return grad + size * torch.randn(grad.shape, generator=source, device=device)

        return add

    for i, p in enumerate(model.parameters()):
        p.register_hook(noisy(i))

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
