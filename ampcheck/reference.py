"""The built-in contracts of `pytest --ampcheck-reference`: plain, exemplary AMP training steps.

They judge the installed torch on this machine, and they are the pattern to copy: fp16 autocast with a gradient scaler,
and bf16 autocast without one. Both networks are small enough for a step of some milliseconds on one CPU core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ampcheck.contract import Training, contract

__all__ = ["batchnorm_cnn", "batchnorm_cnn_bf16", "layernorm_transformer", "layernorm_transformer_bf16"]

MAX_NORM = 1.0

Batch = tuple[Tensor, Tensor]


class CNN(nn.Module):
    """Two convolutions with BatchNorm: float32 images `(batch, 3, height, width)` to logits `(batch, 10)`."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images).mean(dim=(2, 3)))
        return logits


class Transformer(nn.Module):
    """One pre-norm encoder layer: int64 tokens `(batch, length)` to next-token logits `(batch, length, vocabulary)`."""

    def __init__(self, vocabulary: int = 32, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.encoder(self.embedding(tokens))))
        return logits


def images(device: str) -> Batch:
    """Random images, float32 `(8, 3, 16, 16)`, and their classes, int64 `(8,)`."""
    return torch.randn(8, 3, 16, 16, device=device), torch.randint(10, (8,), device=device)


def sequences(device: str) -> Batch:
    """Random tokens, int64 `(4, 16)`, and for each position the token that follows it."""
    tokens = torch.randint(32, (4, 17), device=device)
    return tokens[:, :-1], tokens[:, 1:]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all positions, a float32 scalar."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def fp16_training(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Training:
    """A step under fp16 autocast: scale the loss, unscale before the clip, step and update through the scaler."""
    inputs, targets = batch
    device = inputs.device.type
    scaler = torch.amp.GradScaler(device)

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return _training(step, model=model, optimizer=optimizer, scaler=scaler)


def bf16_training(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Training:
    """A step under bf16 autocast: the exponent range is that of float32, so that no scaler is needed."""
    inputs, targets = batch

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            loss = cross_entropy(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        return loss.detach()

    return _training(step, model=model, optimizer=optimizer)


def _training(step: Callable[[], Tensor], **parts: Any) -> Training:
    """Declare the checkpoint: the state of every part, under the part's name."""

    def state_dict() -> dict[str, Any]:
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(state: dict[str, Any]) -> None:
        for name, part in parts.items():
            part.load_state_dict(state[name])

    return Training(step, state_dict=state_dict, load_state_dict=load_state_dict)


def _cnn(device: str) -> tuple[nn.Module, torch.optim.Optimizer, Batch]:
    torch.manual_seed(0)
    model = CNN().to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), images(device)


def _transformer(device: str) -> tuple[nn.Module, torch.optim.Optimizer, Batch]:
    torch.manual_seed(0)
    model = Transformer().to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), sequences(device)


@contract
def batchnorm_cnn(amp_device: str) -> Training:
    """A convolutional network with BatchNorm, SGD with momentum, fp16 autocast and a gradient scaler."""
    return fp16_training(*_cnn(amp_device))


@contract
def batchnorm_cnn_bf16(amp_device: str) -> Training:
    """The same network under bf16 autocast, without a scaler."""
    return bf16_training(*_cnn(amp_device))


@contract
def layernorm_transformer(amp_device: str) -> Training:
    """A transformer layer with LayerNorm, AdamW, fp16 autocast and a gradient scaler."""
    return fp16_training(*_transformer(amp_device))


@contract
def layernorm_transformer_bf16(amp_device: str) -> Training:
    """The same transformer under bf16 autocast, without a scaler."""
    return bf16_training(*_transformer(amp_device))
