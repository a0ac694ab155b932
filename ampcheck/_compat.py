"""Torch privates and differences between its versions, each in one place with the range it holds for."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["autocast_nesting", "force_eager", "outside_transforms"]


@contextlib.contextmanager
def force_eager() -> Iterator[None]:
    """Run everything that went through `torch.compile` eagerly while active, whenever it was or will be compiled.

    Compiled code has autocast's dtype baked in and its own cache keyed on what it saw: it would ignore a forced
    precision, or keep it afterwards. Nothing is compiled, cached or marked as skipped inside; afterwards compiled code
    is what it was. Nests, and restores the previous state whatever happens. User code that itself calls
    `torch.compiler.set_stance` inside is obeyed until the end of the block.

    Raises:
        RuntimeError: from torch, if entered inside a compiled region.
    """
    # Costs nothing more: the first optimizer that is built imports torch._dynamo (`torch._disable_dynamo`), in every version.
    if hasattr(torch.compiler, "set_stance"):  # torch >= 2.6
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        with _eval_frame_off():
            yield


@contextlib.contextmanager
def _eval_frame_off() -> Iterator[None]:
    """Torch 2.4 and 2.5: every compiled callable installs its frame callback through this one name at each call."""
    module: Any = importlib.import_module("torch._dynamo.eval_frame")
    before = module.set_eval_frame

    def set_eval_frame(callback: object) -> object:
        return before(None)

    module.set_eval_frame = set_eval_frame
    try:
        yield
    finally:
        module.set_eval_frame = before


def autocast_nesting() -> int:
    """How many autocast regions this thread is inside, enabled or not.

    There is no getter; counting up and down again returns the depth. The cast cache is left alone: torch clears it in
    `torch.autocast.__exit__`, not in the counter.
    """
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def outside_transforms() -> contextlib.AbstractContextManager[Any]:
    """Leave the transforms of `torch.func` (grad, vmap) while active; nothing where there are none.

    Inside them torch 2.4 reads no number from a tensor, and every result belongs to their level.
    """
    if torch._C._functorch.peek_interpreter_stack() is None:
        return contextlib.nullcontext()
    module: Any = importlib.import_module("torch._functorch.pyfunctorch")
    left: contextlib.AbstractContextManager[Any] = module.temporarily_clear_interpreter_stack()
    return left
