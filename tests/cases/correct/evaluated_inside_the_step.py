"""Every call ends with an evaluation in inference mode under another autocast region.

The trap: a second region, tensors without gradients, and `eval()` in the middle.
"""

import torch
from torch import nn

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1027)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        model.eval()
        with torch.inference_mode(), torch.autocast(device, dtype=torch.float16):
            shown = model(x).float().mean().item()
        model.train()
        assert shown == shown
        return loss.item()

    return step
