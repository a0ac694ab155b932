"""Two towers run in a thread pool; the region is entered in the main thread.

Effect: autocast is thread-local, so both towers run in float32 while the head runs in bfloat16.
Source: PyTorch docs, `torch.autocast`: the state is thread-local.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

EXPECT = ("AMP306", "AMP601")


class Towers(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.left, self.right = nn.Linear(8, 32), nn.Linear(8, 32)
        self.head = nn.Linear(64, 4)
        self.broken = broken

    def forward(self, x):
        device, dtype = x.device.type, torch.get_autocast_dtype(x.device.type)
        enabled = torch.is_autocast_enabled(device)

        def run(tower):
            if self.broken:
                return tower(x)
            with torch.autocast(device, dtype=dtype, enabled=enabled):
                return tower(x)

        with ThreadPoolExecutor(2) as pool:
            return self.head(torch.cat(list(pool.map(run, (self.left, self.right))), 1))


def build(broken, device="cpu"):
    torch.manual_seed(306)
    model = Towers(broken).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(16, 8, device=device), torch.randint(0, 4, (16,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
