"""`ampcheck doctor`: what this machine is, what can be judged on it, and why not the rest. Nothing it meets makes it fail."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterator
from typing import Any

import ampcheck
from ampcheck.cli.style import say
from ampcheck.report.text import one_line

EXAMPLE = """example:
  ampcheck doctor"""
#: A line: its state ("ok", "no" for what is not there, "broken"), and what it says.
Line = tuple[str, str, str]
STYLES = {"ok": "green", "no": "yellow", "broken": "red", "": ""}


def declare(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def main(options: argparse.Namespace) -> int:
    """Examine and print.

    Returns:
        1 if something that should work does not, else 0; a device that is not there is not broken.
    """
    broken = False
    for state, name, what in examine():
        broken |= state == "broken"
        say(f"{state:<7} {name:<14} {one_line(what, 400)}", STYLES[state])
    return 1 if broken else 0


def examine() -> Iterator[Line]:
    """Everything, a line each."""
    yield "", "ampcheck", f"{ampcheck.__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield from _pytest()
    torch, reason = _torch()
    if torch is None:
        yield "broken", "torch", reason
        yield "no", "families", "none can be judged without torch; `ampcheck list`, `explain`, `init` and `report` work"
        return
    yield (
        "ok",
        "torch",
        f"{torch.__version__}, built {f'for CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'}",
    )
    yield from _flags(torch)
    card: Line | None = None
    for device in ("cpu", "cuda"):
        line = _device(torch, device)
        yield line
        card = line if device == "cuda" else card
    yield from _families(torch, card is not None and card[0] == "ok", card[2] if card else "")
    yield from _extras()


def _torch() -> tuple[Any, str]:
    try:
        return importlib.import_module("torch"), ""
    except Exception as error:  # missing, or with a library that it cannot load
        return None, f"cannot be imported: {type(error).__name__}: {error}"


def _pytest() -> Iterator[Line]:
    try:
        version = importlib.metadata.version("pytest")
    except importlib.metadata.PackageNotFoundError:
        yield "broken", "pytest", "is not installed"
        return
    entries = [e for e in importlib.metadata.entry_points(group="pytest11") if e.value == "ampcheck.plugin"]
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        yield (
            "no",
            "plugin",
            f"pytest {version} loads no plugins by itself (PYTEST_DISABLE_PLUGIN_AUTOLOAD): add -p ampcheck.plugin",
        )
    elif entries:
        yield "ok", "plugin", f"pytest {version} loads {entries[0].value} (entry point {entries[0].name!r}) by itself"
    else:
        yield "no", "plugin", f"pytest {version} knows no entry point of ampcheck (it is not installed): add -p ampcheck.plugin"


def _flags(torch: Any) -> Iterator[Line]:
    try:
        matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        deterministic = torch.are_deterministic_algorithms_enabled()
        yield "", "TF32", f"matmul {matmul}, cuDNN {cudnn}; contracts are judged with both off"
        workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "not set")
        flags = f"deterministic algorithms {deterministic}, cuDNN benchmark {torch.backends.cudnn.benchmark}"
        yield "", "determinism", f"{flags}, CUBLAS_WORKSPACE_CONFIG {workspace}; contracts set their own"
        yield "", "threads", str(torch.get_num_threads())
    except Exception as error:
        yield "broken", "flags", f"{type(error).__name__}: {error}"


def _device(torch: Any, device: str) -> Line:
    """Whether a device is there, what it is, and in which dtypes a small product runs on it."""
    try:
        if device == "cuda" and not torch.cuda.is_available():
            why = (
                "this torch was built without it"
                if not torch.version.cuda
                else "torch sees no GPU; is there a driver, is one visible?"
            )
            return "no", device, why
        name = ""
        if device == "cuda":
            major, minor = torch.cuda.get_device_capability(0)
            name = f"{torch.cuda.get_device_name(0)}, compute capability {major}.{minor}: "
        runs: list[str] = []
        fails: list[str] = []
        for dtype in ("float32", "float16", "bfloat16"):
            reason = _product(torch, device, dtype)
            (fails if reason else runs).append(f"{dtype} ({reason})" if reason else dtype)
        if "float32" not in runs:
            return "broken", device, f"{name}not even float32 runs: {'; '.join(fails)}"
        text = f"{name}{', '.join(runs)}" + (f"; not: {'; '.join(fails)}" if fails else "")
        return "ok", device, text
    except Exception as error:  # a driver that is too old, a card that fell off the bus
        return "broken", device, f"{type(error).__name__}: {error}"


def _product(torch: Any, device: str, dtype: str) -> str:
    """Why a product does not run in a dtype under autocast, forward and backward; "" if it does."""
    try:
        layer = torch.nn.Linear(8, 8, device=device)
        with torch.autocast(device, dtype=getattr(torch, dtype), enabled=dtype != "float32"):
            out = layer(torch.ones(8, 8, device=device))
        out.float().sum().backward()
        return (
            "" if str(out.dtype) == f"torch.{dtype}" and bool(layer.weight.grad.isfinite().all()) else f"it gives {out.dtype}"
        )
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _families(torch: Any, gpu: bool, why: str) -> Iterator[Line]:
    """Which checks can reach a verdict here."""
    yield "ok", "AMP1, AMP2", "order and loss scale: on every device that is there"
    yield from map(_table, ("cpu", "cuda") if gpu else ("cpu",))
    yield "ok", "AMP4", "optimizer state and master weights"
    yield "ok", "AMP5", f"parity with FP32 on {'cpu and cuda' if gpu else 'cpu'}, in the dtypes above"
    if gpu:
        yield "ok", "AMP602, AMP603", "tensor cores and measured gain, on the GPU"
    else:
        yield "no", "AMP603", f"measured gain needs a GPU; CUDA: {why}"
        yield "no", "CUDA", "what autocast and kernels do on a GPU differs from the CPU: run the gate on both"
    yield "ok", "AMP7", "resume, for contracts that declare state_dict= and load_state_dict="
    yield "no", "AMP8", "several ranks are not judged (the ids are reserved)"


def _table(device: str) -> Line:
    from ampcheck.errors import UsageError
    from ampcheck.facts import load

    try:
        table = load(device)
    except UsageError as error:
        return "no", "AMP3, AMP601", f"autocast on {device}: {error}"
    return "ok", "AMP3, AMP601", f"autocast on {device}: {table.origin} table of torch {table.torch}"


def _extras() -> Iterator[Line]:
    for name, what, package in (
        ("xdist", "contracts in parallel", "pytest-xdist"),
        ("jinja2", "HTML reports", "jinja2"),
        ("matplotlib", "pictures in HTML reports", "'ampcheck[report]'"),
        ("argcomplete", "completion in the shell", "'ampcheck[completion]'"),
    ):
        there = importlib.util.find_spec(name) is not None
        yield ("ok", name, what) if there else ("no", name, f"{what}: pip install {package}")
