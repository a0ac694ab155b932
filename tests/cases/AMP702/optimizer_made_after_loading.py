"""The optimizer is loaded, and then made anew: its momentum is gone.

Effect: the first steps after a resume are not those of the run that was stopped.
Source: PyTorch docs, "Saving and Loading Models".
"""

import copy

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP702",)


class Trainer:
    def __init__(self, broken, device):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
        self.broken, self.device = broken, device
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
        self.configure()

    def configure(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def state_dict(self):
        parts = (self.model, self.optimizer, self.scaler)
        return copy.deepcopy([part.state_dict() for part in parts])

    def load_state_dict(self, states):
        for part, state in zip((self.model, self.optimizer, self.scaler), states, strict=True):
            part.load_state_dict(state)
        if self.broken:
            self.configure()

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.float16):
            out = self.model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


def build(broken, device="cpu"):
    torch.manual_seed(1309)
    trainer = Trainer(broken, device)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    return ampcheck.Training(lambda: trainer.step(x, y), state_dict=trainer.state_dict, load_state_dict=trainer.load_state_dict)
