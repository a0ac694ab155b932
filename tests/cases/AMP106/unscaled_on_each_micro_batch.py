"""`unscale_` runs after every micro-batch, for a running display of the norm.

Effect: the second call in a window raises.
Source: PyTorch docs, `torch.amp.GradScaler.unscale_`: only once for each step, after all gradients are accumulated.
"""

import torch
from torch import nn

EXPECT = ("AMP106",)


def build(broken, device="cpu"):
    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    batches = [(torch.randn(5, 6, device=device), torch.randn(5, 2, device=device)) for _ in range(3)]

    def step():
        shown = []
        for i, (x, y) in enumerate(batches):
            with torch.autocast(device, dtype=torch.float16):
                out = model(x)
            scaler.scale(nn.functional.mse_loss(out.float(), y) / len(batches)).backward()
            if broken or i == len(batches) - 1:
                scaler.unscale_(optimizer)
                shown.append(max(float(p.grad.abs().max()) for p in model.parameters()))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return shown[-1]

    return step
