"""A hand-written scaler that falls only at the second overflow in a row, clamps, and takes a clip in `step`.

The trap: it does not back off at once, and `step` has an extra argument.
"""

import torch
from torch import nn

import ampcheck

EXPECT = ()


class Patient:
    def __init__(self, start, low=1.0, high=2.0**20, patience=2, interval=50):
        self.cur_scale, self.low, self.high = start, low, high
        self.patience, self.left, self.interval, self.good = patience, patience, interval, 0

    def state_dict(self):
        return {"cur_scale": self.cur_scale, "left": self.left, "good": self.good}

    def load_state_dict(self, state):
        self.cur_scale, self.left, self.good = state["cur_scale"], state["left"], state["good"]

    def get_scale(self):
        return self.cur_scale

    def scale(self, loss):
        return loss * self.cur_scale

    def step(self, optimizer, max_norm=None):
        parameters = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        torch._foreach_div_([p.grad for p in parameters], self.cur_scale)
        if not all(bool(p.grad.isfinite().all()) for p in parameters):
            self.good, self.left = 0, self.left - 1
            if self.left <= 0:
                self.cur_scale = max(self.low, self.cur_scale / 2)
            return False
        if max_norm is not None:
            nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        self.good += 1
        self.left = self.patience
        if self.good % self.interval == 0:
            self.cur_scale = min(self.high, self.cur_scale * 2)
        return True


def build(device="cpu"):
    torch.manual_seed(1032)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = Patient(2.0**9)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer, max_norm=0.5)
        return loss.item()

    return ampcheck.Training(step, scaler=scaler)
