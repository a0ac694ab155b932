"""Two losses a micro-batch, each with its own backward, and `zero_grad` inside the loop over the micro-batches.

Effect: of four micro-batches, each divided by four, only the last one counts.
Source: PyTorch docs, "Gradient accumulation".
"""

import torch
from torch import nn

EXPECT = ("AMP109", "AMP107")


def build(broken, device="cpu"):
    torch.manual_seed(1104)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        for i in range(4):
            if broken or i == 0:
                optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                out = model(x + i)
            loss = nn.functional.mse_loss(out.float(), y) / 4
            sparsity = 0.05 * out.float().abs().mean() / 4
            scaler.scale(sparsity).backward(retain_graph=True)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
