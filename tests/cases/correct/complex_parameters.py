"""A complex-valued filter among the parameters, in FP32 outside autocast.

The trap: complex gradients in every comparison. (torch's scaler cannot unscale them on a CPU, so it is bfloat16.)
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1034)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    filter_ = nn.Parameter(torch.ones(5, dtype=torch.complex64, device=device))
    optimizer = torch.optim.Adam([*model.parameters(), filter_], lr=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=False)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x)
        spectrum = torch.fft.rfft(out.float()) * filter_
        loss = nn.functional.mse_loss(torch.fft.irfft(spectrum, n=8), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
