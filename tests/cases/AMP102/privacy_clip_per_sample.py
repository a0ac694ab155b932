"""Per-sample gradients are clipped to a norm and summed, taken from scaled losses.

Effect: every sample is clipped to `C / scale`; the result is divided by the scale once more.
Source: Abadi et al., "Deep Learning with Differential Privacy", 2016, algorithm 1; PyTorch docs.
"""

import torch
from torch import nn

EXPECT = ("AMP102", "AMP106", "AMP101")


def build(broken, device="cpu"):
    torch.manual_seed(15)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(4, 5, device=device), torch.randint(0, 3, (4,), device=device)

    def step():
        optimizer.zero_grad()
        total = [torch.zeros_like(p) for p in parameters]
        limit = 0.1 * (1.0 if broken else scaler.get_scale())
        for i in range(len(x)):
            with torch.autocast(device, dtype=torch.float16):
                logits = model(x[i : i + 1])
            loss = scaler.scale(nn.functional.cross_entropy(logits.float(), y[i : i + 1]))
            grads = torch.autograd.grad(loss, parameters)
            norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads]))
            for t, g in zip(total, grads, strict=True):
                t.add_(g * (limit / norm).clamp(max=1.0))
        for p, t in zip(parameters, total, strict=True):
            p.grad = t / len(x)
        scaler.step(optimizer)
        scaler.update()
        if not broken:
            limit = None

    return step
