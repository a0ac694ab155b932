"""Each micro-batch's gradient is clipped in units of the scale, added to a buffer, and cleared; the sum is given back.

The trap: gradients are cleared before each micro-batch, whose loss is divided by their number.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1110)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    buffers = [torch.zeros_like(p) for p in model.parameters()]

    def step():
        for buffer in buffers:
            buffer.zero_()
        for i in range(4):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                out = model(x + i)
            loss = nn.functional.mse_loss(out.float(), y) / 4
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05 * scaler.get_scale())
            for buffer, p in zip(buffers, model.parameters(), strict=True):
                buffer.add_(p.grad)
        for buffer, p in zip(buffers, model.parameters(), strict=True):
            p.grad.copy_(buffer)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
