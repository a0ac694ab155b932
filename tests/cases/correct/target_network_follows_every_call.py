"""A critic's target network, which the step computes with, follows the critic by a little in every call, taken or skipped.

The trap: an average that moves on a skip. It is no copy of the weights for evaluation: it moves by a rule of its own.
"""

import copy

import torch
from torch import nn

EXPECT = ()
QUIET = ("AMP201",)


def build(device="cpu"):
    torch.manual_seed(1063)
    critic = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)).to(device)
    target = copy.deepcopy(critic).requires_grad_(False)
    optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    state, reward = torch.randn(32, 8, device=device), torch.randn(32, 8, device=device)

    def step():
        with torch.autocast(device, dtype=torch.float16):
            with torch.no_grad():
                wanted = reward + 0.9 * target(state + 0.1).float()
            value = critic(state)
        loss = nn.functional.smooth_l1_loss(value.float(), wanted)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for t, p in zip(target.parameters(), critic.parameters(), strict=True):
                t.lerp_(p, 0.01)
        return loss.item()

    return step
