"""A graph layer: the sparse adjacency is a buffer, and its product is taken in FP32 outside autocast.

The trap: a tensor of the model without a storage to ask for.
"""

import torch
from torch import nn
from torch.nn import functional as F

EXPECT = ()


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(16, 32), nn.Linear(32, 8)
        self.register_buffer("adjacency", (torch.rand(16, 16) > 0.7).float().to_sparse_coo())

    def forward(self, x):
        h = self.inner(x)
        with torch.autocast(h.device.type, enabled=False):
            h = torch.sparse.mm(self.adjacency, h.float())
        return self.head(torch.relu(h))


def build(device="cpu"):
    torch.manual_seed(1023)
    model = Graph().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(16, 16, device=device), torch.randint(0, 8, (16,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
