"""Weight decay is applied to the parameters by hand, beside the scaler, in every call.

Effect: a skipped step still shrinks the weights.
Source: PyTorch docs, `torch.amp.GradScaler.step`: an overflow leaves the parameters as they were.
"""

import torch
from torch import nn

EXPECT = ("AMP201",)


def build(broken, device="cpu"):
    torch.manual_seed(203)
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
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if broken or scaler.get_scale() >= before:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1.0 - 1e-3)
        return loss.item()

    return step
