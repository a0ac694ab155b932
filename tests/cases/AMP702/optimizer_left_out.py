"""The checkpoint holds the model and the scaler, and not the optimizer.

Effect: Adam's moments start at zero after a resume.
Source: PyTorch docs, "Saving and Loading Models": save the optimizer's state_dict too.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP702",)


def build(broken, device="cpu"):
    torch.manual_seed(703)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    def save():
        state = {"model": model.state_dict(), "scaler": scaler.state_dict()}
        return state if broken else {**state, "optimizer": optimizer.state_dict()}

    def load(state):
        model.load_state_dict(state["model"])
        scaler.load_state_dict(state["scaler"])
        if "optimizer" in state:
            optimizer.load_state_dict(state["optimizer"])

    return ampcheck.Training(step, state_dict=save, load_state_dict=load)
