"""A running average of past gradients is added to the present one before `unscale_` (slow-gradient amplification).

Effect: while the scale stands still all is right; after it grows, old gradients of half the scale are mixed with new ones.
Source: Lee et al., "Grokfast", 2024, for the filter; PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102", "AMP101")


def build(broken, device="cpu"):
    torch.manual_seed(10)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(12, 8, device=device), torch.randint(0, 4, (12,), device=device)
    slow = {}

    def amplify(alpha=0.9, strength=2.0):
        for name, p in model.named_parameters():
            old = slow.get(name, p.grad)
            slow[name] = (alpha * old + (1 - alpha) * p.grad).detach()
            p.grad = p.grad + strength * slow[name]

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if broken:
            amplify()
            scaler.unscale_(optimizer)
        else:
            scaler.unscale_(optimizer)
            if all(bool(p.grad.isfinite().all()) for p in model.parameters()):
                amplify()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
