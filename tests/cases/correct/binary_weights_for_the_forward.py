"""BinaryConnect: signs of the latent weights for forward and backward, the latent weights for the step.

The trap: after a skipped step the weights are not those that they were when the gradients came; they are the latent ones.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1205)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x = torch.randn(16, 8, device=device)
    latent = [p.detach().clone() for p in model.parameters()]

    def step():
        with torch.no_grad():
            for p, weight in zip(model.parameters(), latent, strict=True):
                p.copy_(weight.sign() * 0.125)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), x)
        scaler.scale(loss).backward()
        with torch.no_grad():
            for p, weight in zip(model.parameters(), latent, strict=True):
                p.copy_(weight)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for p, weight in zip(model.parameters(), latent, strict=True):
                weight.copy_(p.clamp(-1.0, 1.0))
        return loss.item()

    return step
