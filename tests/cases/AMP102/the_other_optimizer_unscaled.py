"""The encoder is clipped, but it is the decoder"s optimizer that was unscaled.

Effect: the encoder"s gradients are clipped while scaled.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


def build(broken, device="cpu"):
    torch.manual_seed(1102)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    decoder = nn.Linear(8, 8).to(device)
    other = torch.optim.SGD(decoder.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        other.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = decoder(model(x).tanh())
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(other if broken else optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.step(other)
        scaler.update()
        return loss.item()

    return step
