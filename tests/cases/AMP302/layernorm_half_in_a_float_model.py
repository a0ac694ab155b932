"""One block is loaded from a 16-bit checkpoint, LayerNorm included; only its linear layers are cast back.

Effect: on the CPU the kernel saves mean and deviation in 16 bits as soon as its weights are; they are rounded themselves.
Source: the measured tables of `ampcheck facts`.
"""

import torch
from torch import nn

EXPECT = ("AMP302",)


def build(broken, device="cpu"):
    torch.manual_seed(302)
    block = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16))
    model = nn.Sequential(nn.Linear(8, 16), block, nn.Linear(16, 4)).to(device)
    if broken:
        block.to(torch.bfloat16)
        for layer in block:
            if isinstance(layer, nn.Linear):
                layer.float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(24, 8, device=device), torch.randint(0, 4, (24,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
