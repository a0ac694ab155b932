"""Parity over a zoo of models: correct loops must be left alone, planted faults must be named.

    python ci/zoo.py OUT.jsonl [--device cuda] [--libraries own torchvision timm transformers] [--models NAME ...]
                     [--faults] [--whole] [--repeats N] [--reseed] [--batch N] [--seconds N]

Every model is trained by a correct loop in float16 (with a scaler at its default scale) and in bfloat16, and with `--faults` by
four faulty ones. `--whole` lets every family judge, not the numeric ones alone. `--repeats` judges each correct loop that
often: no verdict may change (0: the planted faults alone), with `--reseed` each time for another model and batch. `--batch`
cuts the batches, for a CPU. It writes as it goes, goes on where it was stopped, and prints the tables at the end (`--seconds 0`: of
what there is).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from judging import Rows, numeric
from models import ZOO, Entry
from torch import Tensor, nn

import ampcheck

#: Fault -> the dtype it is planted in, and the ids that name it rightly.
FAULTS = {
    "clip of scaled gradients": ("float16", ("AMP102", "AMP101", "AMP502", "AMP503", "AMP504")),
    "underflow": ("float16", ("AMP505", "AMP502", "AMP503")),
    "16-bit statistics": ("bfloat16", ("AMP301", "AMP302", "AMP303", "AMP502", "AMP503", "AMP506")),
    "no master weights": ("bfloat16", ("AMP307", "AMP403")),
}
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)


class LowNorm(nn.Module):
    """A norm that takes its statistics in bfloat16, as E[x^2] - E[x]^2."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.kind, self.groups = type(norm), getattr(norm, "num_groups", 1)

    def forward(self, x: Tensor) -> Tensor:
        shaped = x.reshape(x.shape[0], self.groups, -1) if self.kind is nn.GroupNorm else x
        shaped = shaped.to(torch.bfloat16)  # a residual stream may well be FP32
        dims = (-1,) if self.kind in (nn.LayerNorm, nn.GroupNorm) else tuple(d for d in range(x.dim()) if d != 1)
        mean = shaped.mean(dims, keepdim=True)
        var = ((shaped * shaped).mean(dims, keepdim=True) - mean * mean).clamp(min=0.0)
        h = ((shaped - mean) * torch.rsqrt(var + self.eps)).reshape(x.shape)
        if self.weight is None:
            return h
        shape = (-1,) if self.kind is nn.LayerNorm else (1, -1, *(1 for _ in x.shape[2:]))
        out: Tensor = (h * self.weight.view(shape) + (0.0 if self.bias is None else self.bias.view(shape))).to(x.dtype)
        return out


def with_low_norms(model: nn.Module) -> int:
    """Replace the norms of a model; returns how many there were."""
    count = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, NORMS) and (not isinstance(child, nn.LayerNorm) or len(child.normalized_shape) == 1):
                setattr(module, name, LowNorm(child))
                count += 1
    return count


def cut(data: dict[str, Any], batch: int | None) -> dict[str, Any]:
    """The first samples of a batch."""
    return data if batch is None else {k: v[:batch] if isinstance(v, Tensor | list) else v for k, v in data.items()}


def build(entry: Entry, dtype: str, fault: str, device: str, batch: int | None = None, seed: int = 7) -> Callable[[], Any]:
    """A training step, correct but for the fault."""
    torch.manual_seed(seed)
    model = entry.make().train()
    if fault == "16-bit statistics" and not with_low_norms(model):
        raise ValueError("this model has no norm to plant it in")
    low = getattr(torch, dtype)
    model = model.to(device)
    if fault == "no master weights":
        model = model.to(low)
    data = cut(entry.data(device), batch)
    if fault == "no master weights":
        data = {k: v.to(low) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in data.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    settings: dict[str, Any] = {"init_scale": 2.0**-8, "growth_interval": 10**6} if fault == "underflow" else {}
    scaler = torch.amp.GradScaler(device, enabled=dtype == "float16", **settings)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=low):
            loss = entry.loss(model, data)
        scaler.scale(loss).backward()
        if fault != "clip of scaled gradients":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step


def whole(make_step: Callable[[], Any], device: str, name: str) -> dict[str, Any]:
    """Judge by every family, as a user's contract is."""
    began = time.perf_counter()
    report = ampcheck.check(make_step, device=device, name=name, timeout=3600.0)
    numeric_verdicts = [v for v in report.verdicts if v.check.startswith("AMP5")]
    return {
        "errors": {f.id: f.seen for f in report.findings if f.level == "error"},
        "inconclusive": {v.check: v.reason for v in report.verdicts if v.outcome == "inconclusive"},
        "status": "judged" if any(v.outcome in ("passed", "failed") for v in numeric_verdicts) else "not-run",
        "reason": next((v.reason for v in numeric_verdicts if v.outcome == "not-run"), ""),
        "headroom": report.contracts[0].facts.get("headroom", {}).get("as-written", {}),
        "seconds": round(time.perf_counter() - began, 3),
    }


def jobs(libraries: list[str], models: list[str], faults: bool, repeats: int) -> list[tuple[str, Entry, str, str, int]]:
    found = []
    for library in libraries:
        for name, entry in ZOO[library]().items():
            if models and name not in models:
                continue
            full = f"{library}.{name}"
            found += [(full, entry, dtype, "", r) for dtype in ("float16", "bfloat16") for r in range(repeats)]
            found += [(full, entry, dtype, fault, 0) for fault, (dtype, _) in FAULTS.items() if faults]
    return found


def tables(rows: Rows) -> str:
    """Headrooms of the correct loops, and for each fault in how many models it is named."""
    correct = [row for row in rows if not row["fault"]]
    lines = [f"{'correct loop':48s} {'dtype':9s} {'status':8s} headroom (1 is the limit)"]
    for row in correct:
        shown = " ".join(f"{quantity} {value:.2f}" for quantity, value in row.get("headroom", {}).items())
        unsure = (
            " INCONCLUSIVE " + "; ".join(f"{i}: {r}" for i, r in row["inconclusive"].items()) if row["inconclusive"] else ""
        )
        wrong = f" FALSE ALARM {row['errors']}" if row["errors"] else ""
        reason = row.get("reason") or row.get("raised") or ""
        lines.append(f"{row['model']:48s} {row['dtype']:9s} {row['status']:8s} {shown}{unsure}{wrong} {reason}".rstrip())
    models = {row["model"] for row in correct}
    alarms = sum(bool(row["errors"]) for row in correct)
    unsure_rows = sum(bool(row["inconclusive"]) for row in correct)
    unjudged = sum(row["status"] != "judged" for row in correct)
    counts = f"{alarms} with errors, {unsure_rows} inconclusive, {unjudged} not judged"
    lines.append(f"{len(models)} models, {len(correct)} correct loops: {counts}")
    changed = _changed(correct)
    lines += [f"VERDICT CHANGED {name}" for name in changed]
    for fault, (_, ids) in FAULTS.items():
        group = [row for row in rows if row["fault"] == fault and row["status"] != "not planted"]
        named = [row for row in group if any(id in row["errors"] for id in ids)]
        if group:
            seconds = statistics.median(row["seconds"] for row in group)
            lines.append(f"{fault}: named in {len(named)} of {len(group)} models, median {seconds:.1f} s")
            lines += [
                f"    missed in {row['model']}: {row.get('reason') or row.get('headroom')}" for row in group if row not in named
            ]
    return "\n".join(lines)


def _changed(rows: list[dict[str, Any]]) -> list[str]:
    seen: dict[tuple[str, str], set[tuple[Any, ...]]] = {}
    for row in rows:
        seen.setdefault((row["model"], row["dtype"]), set()).add(
            (row["status"], tuple(row["errors"]), tuple(row["inconclusive"]))
        )
    return [f"{model} {dtype}: {sorted(map(str, verdicts))}" for (model, dtype), verdicts in seen.items() if len(verdicts) > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--libraries", nargs="+", choices=list(ZOO), default=list(ZOO))
    parser.add_argument("--models", nargs="+", default=[])
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--reseed", action="store_true")
    parser.add_argument("--batch", type=int, help="samples at most")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    rows, began = Rows(options.out), time.monotonic()
    for model, entry, dtype, fault, repeat in jobs(options.libraries, options.models, options.faults, options.repeats):
        key = f"{model} {dtype} {fault or 'correct'} {options.device} {'whole ' if options.whole else ''}{repeat}"
        key += f" of {options.batch}" if options.batch else ""
        seed = 7 + repeat if options.reseed else 7
        key += f" from {seed}" if options.reseed else ""
        if key in rows:
            continue
        if time.monotonic() - began > options.seconds:
            break
        judge = whole if options.whole else numeric
        try:
            row = judge(lambda: build(entry, dtype, fault, options.device, options.batch, seed), options.device, key)  # noqa: B023
        except Exception as error:  # the next model may do better
            row = {
                "errors": {},
                "inconclusive": {},
                "status": "crashed",
                "raised": f"{type(error).__name__}: {error}",
                "seconds": 0.0,
            }
        if "no norm to plant" in str(row):  # as an exception, or as a finding
            row["status"] = "not planted"
        rows.add(key, {**row, "model": model, "dtype": dtype, "fault": fault})
    print(tables(rows))


if __name__ == "__main__":
    main()
