"""FP32 low-rank adapters in a bfloat16 model whose own weights, an RMSNorm's and a LayerNorm's included, are frozen.

The trap: gradients pass through norms with 16-bit parameters on their way to the adapters.
"""

import torch
from torch import nn

EXPECT = ()


class Adapted(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.base = nn.Linear(features, features).bfloat16().requires_grad_(False)
        self.down = nn.Linear(features, 8, bias=False)
        self.up = nn.Linear(8, features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def build(device="cpu"):
    torch.manual_seed(1209)
    norms = [norm.bfloat16().requires_grad_(False) for norm in (nn.RMSNorm(16, eps=1e-6), nn.LayerNorm(16))]
    model = nn.Sequential(Adapted(16), norms[0], Adapted(16), norms[1], Adapted(16)).to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    x, y = torch.randn(16, 16, device=device), torch.randn(16, 16, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
