"""The checkpoint holds model, optimizer and schedule, and not the scaler.

Effect: after a resume the scale starts anew, and the first steps are skipped or underflow.
Source: PyTorch docs, "Automatic Mixed Precision" recipe, "Saving/Resuming".
"""

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP701",)


def build(broken, device="cpu"):
    torch.manual_seed(701)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(7, 6, device=device), torch.randn(7, 2, device=device)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if not broken:
        parts["scaler"] = scaler

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            schedule.step()
        return loss.item()

    def save():
        return {name: part.state_dict() for name, part in parts.items()}

    def load(state):
        for name, part in parts.items():
            part.load_state_dict(state[name])

    return ampcheck.Training(step, state_dict=save, load_state_dict=load)
