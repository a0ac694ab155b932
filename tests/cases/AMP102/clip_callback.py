"""A trainer calls `after_backward` callbacks before it unscales, and one of them clips.

Effect: nobody sees the clip beside the scaler, yet it works on scaled gradients.
Source: PyTorch docs, "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


class Callback:
    def after_backward(self, trainer):
        """Gradients are there."""

    def before_step(self, trainer):
        """Gradients are unscaled."""


class ClipEarly(Callback):
    def after_backward(self, trainer):
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)


class ClipLate(Callback):
    def before_step(self, trainer):
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)


class Trainer:
    def __init__(self, model, callbacks, device):
        self.model, self.callbacks, self.device = model, callbacks, device
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**12)

    def tell(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def fit_batch(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.float16):
            out = self.model(x)
        loss = nn.functional.l1_loss(out.float(), y, reduction="sum")
        self.scaler.scale(loss).backward()
        self.tell("after_backward")
        self.scaler.unscale_(self.optimizer)
        self.tell("before_step")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


def build(broken, device="cpu"):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 18), nn.Tanh(), nn.Linear(18, 2)).to(device)
    trainer = Trainer(model, [Callback(), ClipEarly() if broken else ClipLate()], device)
    x, y = torch.randn(20, 6, device=device), torch.randn(20, 2, device=device)
    return lambda: trainer.fit_batch(x, y)
