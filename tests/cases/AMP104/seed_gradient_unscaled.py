"""A pipeline cut: the head's loss is scaled, but the gradient that is sent back to the body is divided on the way.

Effect: body and head share an optimizer and a scaler; only the head's gradients carry the scale.
Source: PyTorch docs, `torch.Tensor.backward(gradient)` and `torch.amp.GradScaler.scale`.
"""

import torch
from torch import nn

EXPECT = ("AMP104",)


def build(broken, device="cpu"):
    torch.manual_seed(36)
    body, head = nn.Linear(6, 8).to(device), nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(9, 6, device=device), torch.randn(9, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            sent = body(x)
        received = sent.detach().float().requires_grad_()
        with torch.autocast(device, dtype=torch.float16):
            out = head(received.tanh())
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        seed = received.grad
        if broken:
            seed = seed / scaler.get_scale()
        sent.backward(seed.to(sent.dtype))
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
