"""The scaler only multiplies the loss; gradients are divided by hand, and nobody looks whether they are finite.

Effect: the first overflow goes into the weights.
Source: PyTorch docs, `torch.amp.GradScaler.step`: it skips a step whose gradients are not finite.
"""

import torch
from torch import nn

EXPECT = ("AMP103",)
UNJUDGED = {"AMP201": "no optimizer goes through the scaler's step"}


def build(broken, device="cpu"):
    torch.manual_seed(1301)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.div_(scaler.get_scale())
        if broken or all(bool(p.grad.isfinite().all()) for p in model.parameters()):
            optimizer.step()
        return loss.item()

    return step
