"""To save space the checkpoint keeps the optimizer's moments in bfloat16, and loading puts them back like that.

Effect: the second moment has eight bits after a resume.
Source: PyTorch docs, `torch.optim.Optimizer.load_state_dict`.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP703",)


def build(broken, device="cpu"):
    torch.manual_seed(705)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
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
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        if broken:
            for slots in optimizer.state.values():
                slots["exp_avg"] = slots["exp_avg"].bfloat16()

    return ampcheck.Training(step, state_dict=save, load_state_dict=load)
