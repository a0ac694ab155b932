"""Two networks have a scaler each, and the checkpoint knows of one.

Effect: the other one begins anew after a resume.
Source: PyTorch docs, "Automatic Mixed Precision" recipe, "Saving/Resuming".
"""

import copy

import torch
from torch import nn

import ampcheck

EXPECT = ("AMP701",)


class Pair:
    def __init__(self, broken, device):
        self.nets = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device) for _ in range(2)]
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3) for net in self.nets]
        self.scalers = [torch.amp.GradScaler(device, init_scale=2.0**10) for _ in self.nets]
        self.device, self.kept = device, [*self.nets, *self.optimizers, *self.scalers[: 1 if broken else 2]]

    def state_dict(self):
        return copy.deepcopy([part.state_dict() for part in self.kept])

    def load_state_dict(self, states):
        for part, state in zip(self.kept, states, strict=True):
            part.load_state_dict(state)

    def step(self, x, y):
        for net, optimizer, scaler in zip(self.nets, self.optimizers, self.scalers, strict=True):
            optimizer.zero_grad()
            with torch.autocast(self.device, dtype=torch.float16):
                out = net(x)
            scaler.scale(nn.functional.mse_loss(out.float(), y)).backward()
            scaler.step(optimizer)
            scaler.update()


def build(broken, device="cpu"):
    torch.manual_seed(1308)
    pair = Pair(broken, device)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    return ampcheck.Training(lambda: pair.step(x, y), state_dict=pair.state_dict, load_state_dict=pair.load_state_dict)
