"""Two losses of one model are scaled by a scaler each, and one of the two divides the sum of their gradients.

Effect: as soon as the scales differ, one loss weighs more or less than it should.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
"""

import torch
from torch import nn

EXPECT = ("AMP110",)


def build(broken, device="cpu"):
    torch.manual_seed(1302)
    body, one, two = (nn.Linear(8, n).to(device) for n in (8, 4, 8))
    optimizer = torch.optim.Adam([*body.parameters(), *one.parameters(), *two.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    other = torch.amp.GradScaler(device, init_scale=2.0**10) if broken else scaler
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 4, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            h = torch.tanh(body(x))
            a, b = one(h), two(h)
        first, second = nn.functional.mse_loss(a.float(), y), nn.functional.l1_loss(b.float(), x)
        scaler.scale(first).backward(retain_graph=True)
        other.scale(second).backward()
        scaler.step(optimizer)
        scaler.update()
        return first.item() + second.item()

    return step
