"""The initial scale is given as an exponent with the sign of a learning rate: `init_scale=-16`.

Effect: the sign of every logged loss is turned; nothing protects from underflow.
Source: PyTorch docs, `torch.amp.GradScaler(init_scale)`.
"""

import torch
from torch import nn

EXPECT = ("AMP206", "AMP205")


def build(broken, device="cpu"):
    torch.manual_seed(252)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=-16.0 if broken else 2.0**12)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

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
