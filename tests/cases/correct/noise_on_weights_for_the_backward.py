"""Noise is added to the weights for forward and backward, and the true weights are put back for the step.

The trap: after a skipped step the weights are those of the call before, not those that the gradients were taken at.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1207)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        kept = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.05)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        with torch.no_grad():
            for p, true in zip(model.parameters(), kept, strict=True):
                p.copy_(true)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
