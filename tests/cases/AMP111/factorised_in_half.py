"""A whitening layer factorises its covariance in the dtype that autocast left.

Effect: there is no float16 kernel for it; the first call raises.
Source: PyTorch docs, `torch.linalg.cholesky`: float, double and complex numbers only.
"""

import torch
from torch import nn

EXPECT = ("AMP111",)


class Whitened(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.first, self.last, self.broken = nn.Linear(16, 8), nn.Linear(8, 8), broken

    def forward(self, x):
        h = self.first(x)
        with torch.autocast(x.device.type, enabled=False):
            h = h if self.broken else h.float()
            covariance = h.t() @ h / len(h) + torch.eye(8, dtype=h.dtype, device=h.device)
            h = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), h.t(), upper=False).t()
        return self.last(h)


def build(broken, device="cpu"):
    torch.manual_seed(111)
    model = Whitened(broken).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(64, 16, device=device), torch.randn(64, 8, device=device)

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
