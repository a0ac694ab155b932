"""What `load_state_dict` returns, nothing, is kept as the scaler: the resumed run takes the branch without one.

Effect: after a resume, float16 gradients are not scaled any more.
Source: PyTorch docs, `torch.amp.GradScaler.load_state_dict`.
"""

import copy

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP702",)


class Trainer:
    def __init__(self, broken, device):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
        self.broken, self.device = broken, device

    def state_dict(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        return copy.deepcopy({name: part.state_dict() for name, part in parts.items()})

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        returned = self.scaler.load_state_dict(state["scaler"])
        if self.broken:
            self.scaler = returned

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.float16):
            out = self.model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.item()


def build(broken, device="cpu"):
    torch.manual_seed(1306)
    trainer = Trainer(broken, device)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    return ampcheck.Training(lambda: trainer.step(x, y), state_dict=trainer.state_dict, load_state_dict=trainer.load_state_dict)
