"""Drives a scaler through toy iterations. Every action is a line of ordinary training code that is both executed and
kept, so the script that a failure prints is what ran, not a description of it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

__all__ = ["Session", "literal", "plain", "quiet_torch"]


@functools.lru_cache(maxsize=4096)
def _compiled(source: str) -> CodeType:
    return compile(source, "<ampcheck scaler script>", "exec")


@functools.lru_cache(maxsize=4096)
def _expression(source: str) -> CodeType:
    return compile(source, "<ampcheck scaler script>", "eval")


def literal(value: float) -> str:
    """`value` as Python source."""
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def plain(value: Any) -> bool:
    """Whether `value` is plain data, so that its repr is its source and nothing of the user's can be reached through it."""
    if isinstance(value, (list, tuple)):
        return all(map(plain, value))
    return value is None or (isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)))


class Session:
    """A scaler, toy parameters and plain SGD with a learning rate of 1, so that a step subtracts the gradient.

    There are three optimizers, made when first used: "a" and "b" own two float32 vectors each (`a0`, `a1`, `b0`, `b1`,
    of `width` and 2 elements), "table" owns a table of shape (3, 1) with sparse gradients in rows 0, 2 and 2.

    Args:
        scaler: the scaler to drive.
        build: lines of source that make `scaler`, for the script.
        device: where the parameters live.
        width: elements of the first vector.
        step_args, step_kwargs: further arguments of `step`, plain data.
    """

    def __init__(
        self,
        scaler: Any,
        build: Sequence[str],
        *,
        device: str = "cpu",
        width: int = 4,
        step_args: Sequence[Any] = (),
        step_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.names: dict[str, Any] = {"scaler": scaler}
        self.build = list(build)
        self.width = width
        self.device = "" if device == "cpu" else f", device={device!r}"
        arguments = [*map(repr, step_args), *(f"{name}={value!r}" for name, value in (step_kwargs or {}).items())]
        self.arguments = "".join(f", {argument}" for argument in arguments)
        self.setup: list[str] = []
        self.blocks: list[list[str]] = []
        self._open = False
        self._execute("import torch")
        scaler_has_getter = callable(getattr(scaler, "get_scale", None))
        self.scale_source = "float(scaler.get_scale())" if scaler_has_getter else self.effective_scale_source

    @property
    def effective_scale_source(self) -> str:
        return f"scaler.scale(torch.ones((){self.device})).item()"

    @property
    def scaler(self) -> Any:
        return self.names["scaler"]

    def run(self, *lines: str) -> None:
        """Execute lines of source and keep them."""
        if self._open:
            self.blocks[-1] += lines
        else:
            self.blocks.append([*lines])
        self._execute(*lines)

    def _execute(self, *lines: str) -> None:
        for line in lines:
            # The lines are written in this module and by its callers, from plain data; nothing is read from outside.
            exec(_compiled(line), self.names)  # noqa: S102

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """What runs inside is one block; the script folds equal blocks in a row into a loop."""
        self.blocks.append([])
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def value(self, source: str) -> Any:
        """Evaluate an expression; it does not enter the script."""
        return eval(_expression(source), self.names)  # noqa: S307 - as above

    def scale(self) -> float:
        """The scale that the scaler reports, or, without a `get_scale`, what it multiplies 1.0 by."""
        return float(self.value(self.scale_source))

    def effective_scale(self) -> float:
        """What the scaler multiplies a float32 loss of 1.0 by."""
        return float(self.value(self.effective_scale_source))

    def parameters(self, optimizer: str) -> list[str]:
        return ["table"] if optimizer == "table" else [f"{optimizer}0", f"{optimizer}1"]

    def elements(self, parameter: str) -> int:
        return 3 if parameter == "table" else self.width if parameter.endswith("0") else 2

    def prepare(self, optimizer: str) -> None:
        """Make the optimizer's parameters and the optimizer, once."""
        if f"optimizer_{optimizer}" in self.names:
            return
        lines = []
        for name in self.parameters(optimizer):
            shape = "3, 1" if name == "table" else str(self.elements(name))
            lines.append(f"{name} = torch.nn.Parameter(torch.zeros({shape}{self.device}))")
        if optimizer == "table":
            lines.append(f"rows = torch.tensor([0, 2, 2]{self.device})")
        lines.append(f"optimizer_{optimizer} = torch.optim.SGD([{', '.join(self.parameters(optimizer))}], lr=1.0)")
        self._execute(*lines)
        self.setup += lines

    def loss(self, optimizer: str, slope: float) -> str:
        """A loss whose gradient is `slope` in each vector element (`slope` for each mention of a table row)."""
        if optimizer == "table":
            return f"{slope!r} * torch.nn.functional.embedding(rows, table, sparse=True).sum()"
        return f"{slope!r} * ({' + '.join(f'{name}.sum()' for name in self.parameters(optimizer))})"

    def backward_lines(self, optimizer: str, slope: float, *, fresh: bool = True) -> list[str]:
        lines = [f"optimizer_{optimizer}.zero_grad()"] if fresh else []
        return [*lines, f"scaler.scale({self.loss(optimizer, slope)}).backward()"]

    def plant_line(self, parameter: str, element: int, value: float) -> str:
        target = "table.grad._values()" if parameter == "table" else f"{parameter}.grad"
        return f"{target}[{element}] = {literal(value)}"

    def step_line(self, optimizer: str) -> str:
        return f"scaler.step(optimizer_{optimizer}{self.arguments})"

    def parameter(self, name: str) -> list[float]:
        values: list[float] = self.value(f"{name}.detach().flatten().tolist()")
        return values

    def gradient(self, name: str) -> list[float]:
        dense = ".to_dense()" if name == "table" else ""
        values: list[float] = self.value(f"{name}.grad.detach(){dense}.flatten().tolist()")
        return values

    def script(self, *ending: str) -> list[str]:
        """The lines that lead to the present state from nothing, then `ending`."""
        body: list[str] = []
        for lines, equal in itertools.groupby(self.blocks):
            count = len(list(equal))
            if count > 1:
                body += [f"for _ in range({count}):", *(f"    {line}" for line in lines)]
            else:
                body += lines
        head = list(dict.fromkeys(["import torch", *(line for line in self.build if line.startswith("import "))]))
        head += [line for line in self.build if line not in head]
        return [*head, "", *self.setup, "", *body, *ending]


@contextlib.contextmanager
def quiet_torch(device: str) -> Iterator[None]:
    """Torch as toy iterations want it, and everything put back afterwards.

    One thread: with more, tiny sparse kernels take a hundred times as long on a busy machine. Gradients on, autocast off,
    default dtype float32, no warnings or prints let out, and the random generators where they were.
    """
    import torch

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        torch.random.fork_rng(devices=[torch.cuda.current_device()] if device == "cuda" else []),
        torch.enable_grad(),
        torch.autocast(device, enabled=False),
    ):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        python_random = random.getstate()
        try:
            yield
        finally:
            random.setstate(python_random)
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
