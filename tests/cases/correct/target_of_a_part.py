"""BYOL: a target follows the encoder, and not the predictor behind it, when a step was taken.

The trap: a norm's bias begins at zero and is far from its average, which looks like a parameter that is left out.
"""

import copy

import torch
from torch import nn

EXPECT = ()
QUIET = ("AMP405",)


def build(device="cpu"):
    torch.manual_seed(1202)
    encoder = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)).to(device)
    predictor = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)).to(device)
    target = copy.deepcopy(encoder).requires_grad_(False)
    optimizer = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x = torch.randn(32, 8, device=device)

    def step():
        views = [x + 0.1 * torch.randn_like(x) for _ in range(2)]
        with torch.autocast(device, dtype=torch.float16):
            online = predictor(encoder(views[0]))
            with torch.no_grad():
                goal = target(views[1])
        loss = 1.0 - nn.functional.cosine_similarity(online.float(), goal.float()).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            with torch.no_grad():
                for average, p in zip(target.parameters(), encoder.parameters(), strict=True):
                    average.lerp_(p, 0.01)
        return loss.item()

    return step
