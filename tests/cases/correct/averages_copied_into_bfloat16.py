"""The averaged weights are FP32; a bfloat16 copy of them, made after each step, is the teacher that labels.

The trap: "averaged weights in 16 bits" (AMP405). Right: the copy is rounded anew from the FP32 average each time, nothing is lost.
"""

import copy

import torch
from torch import nn

EXPECT = ()
QUIET = ("AMP405",)


def build(device="cpu"):
    torch.manual_seed(405)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    teacher = copy.deepcopy(average).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(32, 16, device=device)

    def step():
        with torch.no_grad():
            labels = teacher(x.to(torch.bfloat16)).float().softmax(-1)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, t, p in zip(average.parameters(), teacher.parameters(), model.parameters(), strict=True):
                t.copy_(a.lerp_(p, 0.01))
        return loss.item()

    return step
