"""The averaged model is moved after every call, taken or skipped.

Effect: its warm-up of the decay counts steps that were not taken, and old weights are averaged twice.
Source: PyTorch docs, `torch.optim.swa_utils.AveragedModel.update_parameters`: after the optimizer's step.
"""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

EXPECT = ("AMP201",)


def build(broken, device="cpu"):
    torch.manual_seed(202)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if broken or scaler.get_scale() >= before:
            average.update_parameters(model)
        return loss.item()

    return step
