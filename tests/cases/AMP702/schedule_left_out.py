"""A hand-kept warm-up counter is not in the checkpoint.

Effect: the warm-up begins again after each resume.
Source: PyTorch docs, "Saving and Loading Models".
"""

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP702",)


def build(broken, device="cpu"):
    torch.manual_seed(704)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    taken = {"steps": 0}

    def step():
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (taken["steps"] + 1) / 10)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        taken["steps"] += scaler.get_scale() >= before
        return loss.item()

    def save():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        return state if broken else {**state, "taken": dict(taken)}

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        taken.update(state.get("taken", {}))

    return ampcheck.Training(step, state_dict=save, load_state_dict=load)
