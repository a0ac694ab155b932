"""Everything but the head is cast to bfloat16, and the convolutions are brought back to float32: the BatchNorm is forgotten.

Effect: running statistics move in steps of 1/256 of themselves, batch statistics are rounded to 8 bits.
Source: Micikevicius et al., "Mixed Precision Training", 2018: statistics stay in FP32.
"""

import torch
from torch import nn

EXPECT = ("AMP301", "AMP307", "AMP506")


def build(broken, device="cpu"):
    torch.manual_seed(301)
    norm = nn.BatchNorm2d(8, affine=False)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4)).to(device)
    if broken:
        norm.to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(16, 3, 6, 6, device=device), torch.randint(0, 4, (16,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
