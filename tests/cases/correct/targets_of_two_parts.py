"""BYOL in one module: a backbone and a projector have targets that follow them, the predictor behind has none.

The trap: most of the module is averaged and a part of it is not, which looks like parameters that are left out.
"""

import copy

import torch
from torch import nn

EXPECT = ()
QUIET = ("AMP405",)


class Byol(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 40))
        self.projector = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 16))
        self.backbone_target = copy.deepcopy(self.backbone).requires_grad_(False)
        self.projector_target = copy.deepcopy(self.projector).requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        for part, target in ((self.backbone, self.backbone_target), (self.projector, self.projector_target)):
            for average, p in zip(target.parameters(), part.parameters(), strict=True):
                average.lerp_(p, 0.01)


def build(device="cpu"):
    torch.manual_seed(1203)
    model = Byol().to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x = torch.randn(32, 8, device=device)

    def step():
        views = [x + 0.1 * torch.randn_like(x) for _ in range(2)]
        with torch.autocast(device, dtype=torch.float16):
            online = model.predictor(model.projector(model.backbone(views[0])))
            with torch.no_grad():
                goal = model.projector_target(model.backbone_target(views[1]))
        loss = 1.0 - nn.functional.cosine_similarity(online.float(), goal.float()).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            model.follow()
        return loss.item()

    return step
