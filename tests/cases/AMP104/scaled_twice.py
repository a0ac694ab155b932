"""The loss is scaled in the criterion and once more in the loop.

Effect: gradients carry the square of the scale, and are divided by it once.
Source: PyTorch docs, `torch.amp.GradScaler.scale`.
"""

import torch
from torch import nn

EXPECT = ("AMP104",)


class Criterion:
    def __init__(self, scaler, scales):
        self.scaler, self.scales = scaler, scales

    def __call__(self, logits, y):
        loss = nn.functional.cross_entropy(logits.float(), y)
        return self.scaler.scale(loss) if self.scales else loss


def build(broken, device="cpu"):
    torch.manual_seed(31)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=32.0)
    criterion = Criterion(scaler, broken)
    x, y = torch.randn(8, 6, device=device), torch.randint(0, 4, (8,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        scaler.scale(criterion(logits, y)).backward()
        scaler.step(optimizer)
        scaler.update()

    return step
