"""A penalty on the weights is added to the loss after the loss was scaled.

Effect: the penalty's gradient is divided by the scale; regularisation is off.
Source: PyTorch docs, "Gradient penalty": all of the loss is scaled.
"""

import torch
from torch import nn

EXPECT = ("AMP104", "AMP102", "AMP101")


def build(broken, device="cpu"):
    torch.manual_seed(34)
    model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**9)
    x, y = torch.randn(8, 7, device=device), torch.randint(0, 2, (8,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        penalty = 1e-2 * sum(p.square().sum() for p in model.parameters())
        total = scaler.scale(loss) + penalty if broken else scaler.scale(loss + penalty)
        total.backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
