"""`clip_grad_norm_(error_if_nonfinite=True)` after `unscale_`.

Effect: the first overflow, which the scaler would pass over, ends the training.
Source: PyTorch docs, `torch.nn.utils.clip_grad_norm_`; `torch.amp.GradScaler`: overflows are part of the search for the scale.
"""

import torch
from torch import nn

EXPECT = ("AMP204",)


def build(broken, device="cpu"):
    torch.manual_seed(230)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=broken)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
