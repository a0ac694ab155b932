"""The checkpoint is a pickle of model, optimizer and scaler; loading puts other objects in their place.

The trap: the scaler that the build made has not the saved scale; the one that is used from then on has.
"""

import pickle

import torch
from torch import nn

import ampcheck

EXPECT = ()


class Trainer:
    def __init__(self, device):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
        self.device = device

    def save(self):
        return pickle.dumps((self.model, self.optimizer, self.scaler))

    def load(self, saved):
        self.model, self.optimizer, self.scaler = pickle.loads(saved)

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.float16):
            out = self.model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


def build(device="cpu"):
    torch.manual_seed(1096)
    trainer = Trainer(device)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    return ampcheck.Training(lambda: trainer.step(x, y), state_dict=trainer.save, load_state_dict=trainer.load)
