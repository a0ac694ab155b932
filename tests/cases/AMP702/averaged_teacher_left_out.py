"""A mean teacher is averaged from the student in each call, and the checkpoint leaves it out.

Effect: after resuming the teacher is a new network, and the student is pulled towards it.
Source: Tarvainen and Valpola, "Mean teachers are better role models", 2017: the teacher is the history of the student.
"""

import copy

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP702",)


def build(broken, device="cpu"):
    torch.manual_seed(1232)
    student = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)
    parts = {"student": student, "teacher": teacher, "optimizer": optimizer, "scaler": scaler}
    if broken:
        del parts["teacher"]

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out, goal = student(x), teacher(x)
        loss = nn.functional.mse_loss(out.float(), y) + nn.functional.mse_loss(out.float(), goal.float())
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            with torch.no_grad():
                for average, p in zip(teacher.parameters(), student.parameters(), strict=True):
                    average.lerp_(p, 0.1)
        return loss.item()

    def state_dict():
        return copy.deepcopy({name: part.state_dict() for name, part in parts.items()})

    def load_state_dict(state):
        for name, part in parts.items():
            part.load_state_dict(state[name])

    return ampcheck.Training(step, state_dict=state_dict, load_state_dict=load_state_dict)
