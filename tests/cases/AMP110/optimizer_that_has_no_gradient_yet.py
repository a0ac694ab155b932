"""All optimizers are stepped in every call, but the adapter takes part only in every second one.

Effect: in the others the scaler raises for the optimizer without gradients.
Source: PyTorch docs, `torch.amp.GradScaler.step`.
"""

import torch
from torch import nn

EXPECT = ("AMP110",)


def build(broken, device="cpu"):
    torch.manual_seed(101)
    base, adapter = nn.Linear(5, 4).to(device), nn.Linear(5, 4).to(device)
    base_opt = torch.optim.SGD(base.parameters(), lr=1e-2)
    adapter_opt = torch.optim.SGD(adapter.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**9)
    x, y = torch.randn(8, 5, device=device), torch.randn(8, 4, device=device)
    seen = {"calls": 0}

    def step():
        seen["calls"] += 1
        both = seen["calls"] % 2 == 0
        base_opt.zero_grad()
        adapter_opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = base(x) + adapter(x) if both else base(x)
        scaler.scale(nn.functional.mse_loss(out.float(), y)).backward()
        scaler.step(base_opt)
        if both or broken:
            scaler.step(adapter_opt)
        scaler.update()

    return step
