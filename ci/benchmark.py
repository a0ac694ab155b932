"""What a contract costs: the time of ampcheck over the time of the bare steps and builds that it needed.

    python ci/benchmark.py [--device cpu] [--steps-ms 10 200] [--json PATH]

For each step time a network is tuned at start to take it; then everything is measured in one run, on one machine:

- `bare`: builds x the time of one build + steps x the time of one step, as the runner counted them by scenario. Steps of
  the scenarios in FP32 are priced as FP32 steps: on a CPU they cost another time than 16-bit ones.
- `check`: the time of `ampcheck.check(make_step)` in this process, a warm one.
- `pytest`: the time of a child `pytest --ampcheck`, and without what the same child takes to collect only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ampcheck
from ampcheck.findings import Cost

#: Scenarios whose steps run in FP32.
FP32 = ("reference", "widened", "scaled")
REPEATS = 7


def make_step(device: str, batch_size: int, enabled: bool = True) -> Callable[[], torch.Tensor]:
    """A plain AMP step of a small network; time grows with the batch, and memory of the weights does not."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()))).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=enabled)
    inputs = torch.randn(batch_size, 128, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16, enabled=enabled):
            loss: torch.Tensor = model(inputs).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def seconds(function: Callable[[], Any], device: str, repeats: int = REPEATS) -> float:
    """Median wall seconds of a call, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def tune(device: str, target: float) -> int:
    """The batch size with which a step takes about `target` seconds."""
    size = 64
    for _ in range(8):
        taken = seconds(make_step(device, size), device)
        if 0.9 < taken / target < 1.1 or size > 2**20:
            break
        size = max(1, round(size * min(target / taken, 8.0)))
    return size


def bare(costs: list[Cost], build: float, step: float, step32: float) -> float:
    """What the builds and steps of these scenarios take by themselves, in seconds."""
    return sum(cost.builds * build + cost.calls * (step32 if cost.scenario.startswith(FP32) else step) for cost in costs)


def child(folder: Path, *arguments: str) -> float:
    """Wall seconds of a child pytest in the folder."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ampcheck.plugin", "--ampcheck", *arguments]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return time.perf_counter() - start


def contract(device: str, batch_size: int) -> str:
    """The test module of the child: the same step, as a contract."""
    return (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import ampcheck, benchmark, torch\n\n"
        "torch.set_num_threads(1)\n\n"
        f"@ampcheck.contract(devices={device!r})\n"
        "def bench(amp_device):\n"
        f"    return benchmark.make_step({device!r}, {batch_size})\n"
    )


def measure(device: str, target: float) -> dict[str, Any]:
    """All figures for one step time, given in seconds."""
    size = tune(device, target)
    build = seconds(lambda: make_step(device, size), device)
    step = seconds(make_step(device, size), device)
    step32 = seconds(make_step(device, size, enabled=False), device)

    start = time.perf_counter()
    report = ampcheck.check(lambda: make_step(device, size), device=device)
    checked = time.perf_counter() - start
    (judged,) = report.contracts
    needed = bare(judged.costs, build, step, step32)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_bench.py").write_text(contract(device, size), "utf-8")
        collecting = child(folder, "--collect-only")
        whole = child(folder)
    return {
        "step_ms": 1000 * step,
        "step_fp32_ms": 1000 * step32,
        "build_ms": 1000 * build,
        "bare_s": needed,
        "check_s": checked,
        "pytest_s": whole,
        "pytest_start_s": collecting,
        "check_ratio": checked / needed,
        "pytest_ratio": (whole - collecting) / needed,
        "pytest_whole_ratio": whole / needed,
        "findings": [finding.id for finding in judged.findings],
        "scenarios": [{**cost.to_json(), "bare_s": bare([cost], build, step, step32)} for cost in judged.costs],
    }


def show(figures: dict[str, Any]) -> None:
    print(
        f"\nstep {figures['step_ms']:.1f} ms (FP32 {figures['step_fp32_ms']:.1f} ms), build {figures['build_ms']:.1f} ms, "
        f"bare {figures['bare_s']:.2f} s, findings: {', '.join(figures['findings']) or 'none'}"
    )
    print(f"  ampcheck.check     {figures['check_s']:7.2f} s   {figures['check_ratio']:.2f} x bare")
    print(f"  pytest --ampcheck  {figures['pytest_s']:7.2f} s   {figures['pytest_ratio']:.2f} x bare less start-up", end="")
    print(f" ({figures['pytest_start_s']:.2f} s), {figures['pytest_whole_ratio']:.2f} x in all")
    print(f"  {'scenario':<20} {'builds':>6} {'steps':>6} {'seconds':>8} {'bare':>8} {'ratio':>6}")
    for cost in figures["scenarios"]:
        ratio = cost["seconds"] / cost["bare_s"] if cost["bare_s"] else float("nan")
        print(
            f"  {cost['scenario']:<20} {cost['builds']:>6} {cost['calls']:>6} "
            f"{cost['seconds']:>8.3f} {cost['bare_s']:>8.3f} {ratio:>6.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[10.0, 200.0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ampcheck.check(lambda: make_step(arguments.device, 8), device=arguments.device)  # imports are nobody's step
    results = [measure(arguments.device, target / 1000) for target in arguments.steps_ms]
    for figures in results:
        show(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
