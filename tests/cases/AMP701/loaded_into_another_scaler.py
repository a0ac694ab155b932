"""On load a new scaler is made and given the state; the loop keeps the old one.

Effect: the state is saved and loaded, and has no effect.
Source: PyTorch docs, `torch.amp.GradScaler.load_state_dict`.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP701", "AMP702")


class Run:
    def __init__(self, device, broken):
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
        self.used = self.scaler
        self.device, self.broken = device, broken

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.float16):
            logits = self.model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        self.used.scale(loss).backward()
        self.used.step(self.optimizer)
        self.used.update()
        return loss.item()

    def save(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.used.state_dict(),
        }

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler = torch.amp.GradScaler(self.device)
        self.scaler.load_state_dict(state["scaler"])
        if not self.broken:
            self.used = self.scaler


def build(broken, device="cpu"):
    torch.manual_seed(702)
    run = Run(device, broken)
    x, y = torch.randn(7, 6, device=device), torch.randint(0, 2, (7,), device=device)
    return ampcheck.Training(lambda: run.step(x, y), state_dict=run.save, load_state_dict=run.load)
