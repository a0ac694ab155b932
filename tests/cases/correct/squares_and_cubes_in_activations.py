"""Activations that square or cube in float16: the tanh form of GELU, and the squared ReLU.

The trap: "pow in 16 bits" (AMP305). Right: x^2 and x^3 are as exact as the products that they stand for; what makes squares
sensitive is their sum or mean.
"""

import torch
from torch import nn

EXPECT = ()
QUIET = ("AMP305",)


class Activation(nn.Module):
    def forward(self, x):
        gelu = 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0))))
        return gelu + 0.1 * torch.relu(x).square()


def build(device="cpu"):
    torch.manual_seed(305)
    model = nn.Sequential(nn.Linear(16, 64), Activation(), nn.LayerNorm(64), nn.Linear(64, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(32, 16, device=device), torch.randint(0, 8, (32,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
