"""Parity over many seeds of small nets that decide: how often a correct step is called wrong, and how often a fault is found.

    python ci/seeds.py OUT.jsonl [--seeds 1000] [--faults 100] [--part 0/1] [--device cpu] [--seconds N]

Each seed draws a net (ReLU, PReLU, max-pool, routed or GELU), its width, batch, optimizer and learning rate, and is judged in
float16 with a scaler and in bfloat16 without one. The first `--faults` seeds are judged again with each planted fault. It goes
on where it was stopped, and prints the table at the end (or of what there is, with `--seconds 0`). `--part 3/8` is every eighth
seed from the fourth on, for eight processes with a file each, whose lines are put together afterwards.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from judging import Rows, numeric
from torch import Tensor, nn
from torch.nn import functional as F

NETS = ("relu", "prelu", "maxpool", "routed", "gelu")
#: Fault -> ids that name it rightly.
FAULTS = {
    "clip of scaled gradients": ("AMP502", "AMP503", "AMP504"),
    "underflow": ("AMP505", "AMP502", "AMP503"),
    "16-bit statistics": ("AMP301", "AMP303", "AMP502", "AMP503", "AMP506"),
    "no master weights": ("AMP307", "AMP403"),
}


class Routed(nn.Module):
    """Each row goes to the one of three experts that its router, in FP32, prefers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 3)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            gate, choice = F.softmax(F.linear(x.float(), self.router.weight.float(), self.router.bias.float()), -1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + (choice == i)[:, None] * gate[:, None].to(x.dtype) * expert(x)
        return x + out


class HandmadeNorm(nn.Module):
    """A batch norm by hand, which takes its statistics in FP32 or, wrongly, in the dtype of its input."""

    def __init__(self, width: int, low: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.low = low

    def forward(self, x: Tensor) -> Tensor:
        h = x + 4.0 if self.low else x.float() + 4.0
        mean = h.mean(0)
        var = (h * h).mean(0) - mean * mean if self.low else h.var(0, unbiased=False)
        h = (h - mean) * torch.rsqrt(var.clamp(min=0.0) + 1e-5)
        return (h * self.weight + self.bias).to(x.dtype)


def network(kind: str, width: int, low_statistics: bool | None) -> nn.Module:
    """A small net from 16 features, or 1 x 8 x 8 pictures, to 4 classes."""
    norm: nn.Module = nn.LayerNorm(width) if low_statistics is None else HandmadeNorm(width, low_statistics)
    if kind == "maxpool":
        stem = [
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3),
            nn.AdaptiveMaxPool2d(1),
        ]
        return nn.Sequential(*stem, nn.Flatten(), norm, nn.Linear(width, 4))
    if kind == "routed":
        return nn.Sequential(nn.Linear(16, width), norm, Routed(width), nn.ReLU(), nn.Linear(width, 4))
    act = {"relu": nn.ReLU, "prelu": nn.PReLU, "gelu": nn.GELU}[kind]
    return nn.Sequential(nn.Linear(16, width), norm, act(), nn.Linear(width, width), act(), nn.Linear(width, 4))


def build(seed: int, dtype: str, fault: str, device: str) -> Callable[[], Any]:
    """The step of one seed, with a fault or none."""
    draw = random.Random(seed)
    kind = NETS[seed % len(NETS)]
    width, batch = draw.choice((16, 32, 48)), draw.choice((8, 16, 32, 64))
    adam, lr = draw.random() < 0.5, 10.0 ** draw.uniform(-3.5, -1.5)
    torch.manual_seed(seed)
    model = network(kind, width, fault == "16-bit statistics" if fault == "16-bit statistics" or seed % 3 == 0 else None).to(
        device
    )
    if fault == "no master weights":
        model = model.to(getattr(torch, dtype))
    x = torch.randn(4, batch, 1, 8, 8, device=device) if kind == "maxpool" else torch.randn(4, batch, 16, device=device)
    y = torch.randint(0, 4, (4, batch), device=device)
    optimizer: torch.optim.Optimizer
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=lr / 10) if adam else torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    )
    scale = 2.0**-10 if fault == "underflow" else 2.0**12
    scaler = torch.amp.GradScaler(device, init_scale=scale, enabled=dtype == "float16")
    # a loss that is small as a whole, as the distance of a fine-tuned net to its teacher is, needs its scale
    small = 2.0**-8 if fault == "underflow" else 1.0
    calls = 0

    def step() -> float:
        nonlocal calls
        inputs, labels = x[calls % 4], y[calls % 4]
        calls += 1
        optimizer.zero_grad()
        with torch.autocast(device, dtype=getattr(torch, dtype)):
            logits = model(inputs)
        loss = small * F.cross_entropy(logits.float(), labels)
        scaler.scale(loss).backward()
        if fault != "clip of scaled gradients":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step


def cases(seeds: range, faults: int) -> list[tuple[int, str, str]]:
    """Seed, dtype and fault of everything that is judged, correct and faulty in turn."""
    found = []
    for seed in seeds:
        found += [(seed, dtype, "") for dtype in ("float16", "bfloat16")]
        if seed < faults:
            found += [(seed, "float16", fault) for fault in ("clip of scaled gradients", "underflow")]
            found += [(seed, dtype, "16-bit statistics") for dtype in ("float16", "bfloat16")]
            found += [(seed, "bfloat16", "no master weights")]
    return found


def table(rows: Rows) -> str:
    """What was found, by fault, dtype and net."""
    counts = f"{'n':>5s} {'named':>6s} {'errors':>6s} {'inconcl.':>8s} {'not judged':>10s}"
    lines = [f"{'fault':26s} {'dtype':9s} {'net':8s} {counts}  worst headroom"]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for net in (row["net"], "all"):
            groups.setdefault((row["fault"], row["asked"], net), []).append(row)
    for (fault, dtype, net), group in sorted(groups.items()):
        named = sum(any(id in row["errors"] for id in FAULTS.get(fault, ())) for row in group)
        errors = sum(bool(row["errors"]) for row in group)
        unsure = sum(bool(row["inconclusive"]) and not row["errors"] for row in group)
        unjudged = sum(row["status"] != "judged" for row in group)
        worst: dict[str, float] = {}
        for row in group:
            for quantity, value in row.get("headroom", {}).items():
                worst[quantity] = max(worst.get(quantity, 0.0), value)
        shown = ", ".join(f"{quantity} {value:.2g}" for quantity, value in worst.items())
        counts = f"{len(group):5d} {named:6d} {errors:6d} {unsure:8d} {unjudged:10d}"
        lines.append(f"{fault or 'none':26s} {dtype:9s} {net:8s} {counts}  {shown}")
    wrong = [row for row in rows if not row["fault"] and row["errors"]]
    lines += [f"FALSE ALARM {row['key']}: {row['errors']}" for row in wrong]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    rows, began = Rows(options.out), time.monotonic()
    part, parts = map(int, options.part.split("/"))
    for seed, dtype, fault in cases(range(part, options.seeds, parts), options.faults):
        key = f"{seed} {dtype} {fault or 'correct'} {options.device}"
        if key in rows:
            continue
        if time.monotonic() - began > options.seconds:
            break
        row = numeric(lambda: build(seed, dtype, fault, options.device), options.device, key)  # noqa: B023
        rows.add(key, {"seed": seed, "asked": dtype, "fault": fault, "net": NETS[seed % len(NETS)], **row})
    print(table(rows))


if __name__ == "__main__":
    main()
