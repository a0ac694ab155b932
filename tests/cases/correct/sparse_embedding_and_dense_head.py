"""Sparse gradients of an embedding through SparseAdam, dense ones through SGD, on one scaler.

The trap: sparse, uncoalesced gradients.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1035)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    y = torch.randn(8, 8, device=device)

    table = nn.Embedding(20, 8, sparse=True).to(device)
    sparse = torch.optim.SparseAdam(table.parameters(), lr=1e-3)
    words = torch.randint(0, 20, (8, 3), device=device)

    def step():
        optimizer.zero_grad()
        sparse.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(table(words).sum(1))
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(sparse)
        scaler.update()
        return loss.item()

    return step
