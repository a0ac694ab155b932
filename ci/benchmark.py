"""What a contract costs: the time of ampcheck over the time of the bare steps and builds that it needed.

    python ci/benchmark.py [--device cpu] [--steps-ms 10 200] [--pairs 5] [--json PATH]

For each step time a network is tuned at start to take it. The runner counts builds and steps by scenario; `bare` does as
many of each with nothing around them, in FP32 where the scenario runs in FP32 (on a CPU that takes another time than 16
bits). Everything is measured in pairs, one right after the other, and reported as the median of the ratios of one run:

- by scenario: its seconds, as the runner measured them, over its bare seconds;
- `ampcheck.check`: a call in this process, over all bare seconds;
- `pytest --ampcheck`: a child pytest that judges the contract, over a child pytest whose one test does the bare work.
  Start-up of Python, torch and pytest is in both.
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

#: Scenarios that run the step in its own precision; the others run it in FP32.
AS_WRITTEN = ("natural", "precision", "recovery", "resume", "scaler")


def make_step(device: str, batch_size: int, autocast: bool = True) -> Callable[[], torch.Tensor]:
    """A plain AMP step of a small network; its time grows with the batch, the memory of the weights does not."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()))).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    inputs = torch.randn(batch_size, 128, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16, enabled=autocast):
            loss: torch.Tensor = model(inputs).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def bare(scenario: str, builds: int, calls: int, device: str, batch_size: int) -> float:
    """Wall seconds of as many builds and steps with nothing around them."""
    start = time.perf_counter()
    for done in range(builds):
        step = make_step(device, batch_size, autocast=scenario in AS_WRITTEN)
        for _ in range(calls // builds + (done < calls % builds)):
            step()
    _wait(device)
    return time.perf_counter() - start


def tune(device: str, target: float) -> tuple[int, float, float]:
    """The batch size with which a step takes about `target` seconds, and what it takes as written and in FP32."""
    size, taken = 64, 0.0
    for _ in range(8):
        taken = _median_seconds(make_step(device, size), device)
        if 0.9 < taken / target < 1.1 or size > 2**20:
            break
        size = max(1, round(size * min(target / taken, 8.0)))
    return size, taken, _median_seconds(make_step(device, size, autocast=False), device)


def _median_seconds(step: Callable[[], Any], device: str) -> float:
    times = []
    for _ in range(8):
        start = time.perf_counter()
        step()
        _wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def in_process(device: str, size: int, pairs: int) -> tuple[list[Cost], list[str], dict[str, Any]]:
    """Costs and findings of one judgement, and the figures of `pairs` of them."""
    ratios: list[float] = []
    seconds: list[float] = []
    scenarios: dict[str, list[tuple[float, float]]] = {}
    for _ in range(pairs):
        start = time.perf_counter()
        (judged,) = ampcheck.check(lambda: make_step(device, size), device=device).contracts
        seconds.append(time.perf_counter() - start)
        for cost in judged.costs:
            scenarios.setdefault(cost.scenario, []).append(
                (cost.seconds, bare(cost.scenario, cost.builds, cost.calls, device, size))
            )
        ratios.append(seconds[-1] / sum(pair[-1][1] for pair in scenarios.values()))
    rows = [
        {
            "scenario": cost.scenario,
            "builds": cost.builds,
            "steps": cost.calls,
            "seconds": statistics.median(ours for ours, _ in scenarios[cost.scenario]),
            "bare_s": statistics.median(theirs for _, theirs in scenarios[cost.scenario]),
            "ratio": statistics.median(ours / theirs for ours, theirs in scenarios[cost.scenario]),
        }
        for cost in judged.costs
    ]
    figures = {"check_s": statistics.median(seconds), "check_ratio": statistics.median(ratios), "scenarios": rows}
    return judged.costs, [finding.id for finding in judged.findings], figures


TESTS = """
import sys; sys.path.insert(0, {here!r})
import ampcheck, benchmark, torch

torch.set_num_threads(1)

@ampcheck.contract(devices={device!r})
def bench(amp_device):
    return benchmark.make_step({device!r}, {size})

def test_bare():
    for cost in {costs!r}:
        benchmark.bare(*cost, {device!r}, {size})
"""


def in_children(device: str, size: int, costs: list[Cost], pairs: int) -> dict[str, float]:
    """Child pytests: one that judges the contract against one that does the bare work."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts = [(cost.scenario, cost.builds, cost.calls) for cost in costs]
        text = TESTS.format(here=str(Path(__file__).parent), device=device, size=size, costs=counts)
        (folder / "test_bench.py").write_text(text, "utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
        _child(folder)  # compile and cache the sources
        measured = [(_child(folder), _child(folder, "--ampcheck-only")) for _ in range(pairs)]
    return {
        "pytest_s": statistics.median(ours for _, ours in measured),
        "pytest_bare_s": statistics.median(theirs for theirs, _ in measured),
        "pytest_ratio": statistics.median(ours / theirs for theirs, ours in measured),
    }


def _child(folder: Path, *arguments: str) -> float:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ampcheck.plugin", *arguments]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return time.perf_counter() - start


def measure(device: str, target: float, pairs: int) -> dict[str, Any]:
    """All figures for one step time, given in seconds."""
    size, step, step32 = tune(device, target)
    costs, findings, figures = in_process(device, size, pairs)
    children = in_children(device, size, costs, max(1, pairs // 2))
    return {"step_ms": 1000 * step, "step_fp32_ms": 1000 * step32, "findings": findings, **figures, **children}


def show(figures: dict[str, Any]) -> None:
    bare_s = sum(row["bare_s"] for row in figures["scenarios"])
    found = ", ".join(figures["findings"]) or "none"
    print(f"\nstep {figures['step_ms']:.1f} ms as written, {figures['step_fp32_ms']:.1f} ms in FP32; findings: {found}")
    print(f"  {'':<20} {'builds':>6} {'steps':>6} {'seconds':>8} {'bare':>8} {'ratio':>6}")
    for row in figures["scenarios"]:
        print(f"  {row['scenario']:<20} {row['builds']:>6} {row['steps']:>6}", end="")
        print(f" {row['seconds']:>8.3f} {row['bare_s']:>8.3f} {row['ratio']:>6.2f}")
    print(f"  {'ampcheck.check':<34} {figures['check_s']:>8.3f} {bare_s:>8.3f} {figures['check_ratio']:>6.2f}")
    print(f"  {'pytest --ampcheck':<34} {figures['pytest_s']:>8.3f} {figures['pytest_bare_s']:>8.3f}", end="")
    print(f" {figures['pytest_ratio']:>6.2f}   start-up included")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[10.0, 200.0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ampcheck.check(lambda: make_step(arguments.device, 8), device=arguments.device)  # imports are nobody's step
    results = [measure(arguments.device, target / 1000, arguments.pairs) for target in arguments.steps_ms]
    for figures in results:
        show(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
