"""FP32 masters are filled from the bfloat16 model before each step instead of once.

Effect: they hold nothing that the model does not; updates below half a unit in the last place are lost, as without masters.
Source: Micikevicius et al., "Mixed Precision Training", 2018, section 3.1.
"""

import torch
from torch import nn

EXPECT = ("AMP403",)


def build(broken, device="cpu"):
    torch.manual_seed(403)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to(device, torch.bfloat16)
    masters = [nn.Parameter(p.detach().float().clone()) for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=1e-3, momentum=0.9)
    x = torch.randn(16, 16, device=device, dtype=torch.bfloat16)
    y = torch.randint(0, 8, (16,), device=device)

    def step():
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        for p, master in zip(model.parameters(), masters, strict=True):
            if broken:
                master.data.copy_(p)
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(model.parameters(), masters, strict=True):
                p.copy_(master)
        return loss.item()

    return step
