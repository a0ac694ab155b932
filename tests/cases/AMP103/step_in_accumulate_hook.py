"""The optimizer runs inside backward, in post-accumulate hooks, and the loss is scaled.

Effect: each parameter is updated by its scaled gradient as soon as it arrives; the scaler never sees one.
Source: PyTorch tutorial, "How to save memory by fusing the optimizer step into the backward pass", which scales nothing.
"""

import torch
from torch import nn

EXPECT = ("AMP103",)


def build(broken, device="cpu"):
    torch.manual_seed(24)
    model = nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 2)).to(device)
    optimizers = {p: torch.optim.SGD([p], lr=1e-3) for p in model.parameters()}
    scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=broken)
    dtype = torch.float16 if broken else torch.bfloat16
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 2, device=device)

    def use(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(use)

    def step():
        with torch.autocast(device, dtype=dtype):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        return loss.item()

    return step
