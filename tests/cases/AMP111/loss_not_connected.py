"""The loss is computed from detached logits.

Effect: backward raises, as the loss does not require a gradient.
Source: PyTorch docs, `torch.Tensor.detach`.
"""

import torch
from torch import nn

EXPECT = ("AMP111",)


def build(broken, device="cpu"):
    torch.manual_seed(110)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        out = out.detach() if broken else out
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
