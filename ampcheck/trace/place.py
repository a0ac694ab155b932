"""Where in a training step an op runs: forward, recomputation, backward or a hook; in which module, custom Function and line.

All of it is read from the Python stack at the moment of the op, so nothing has to be patched and it does not matter how early
a Function's `apply` was bound to a name.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, Function

from ampcheck.findings import Location
from ampcheck.trace.sources import _OWN, _location, _rank

__all__ = ["Place", "called_from_python", "function_of", "place"]

_ENGINE = torch.autograd.graph._engine_run_backward.__code__
#: `Function.apply`, while it is Python; from torch 2.14 on it leaves no frame, and `forward` itself has to be known by its code.
_APPLY = getattr(getattr(Function.apply, "__func__", None), "__code__", None)
_BACKWARD = tuple(
    vars(BackwardCFunction)[name].__code__ for name in ("apply", "apply_boxed") if name in vars(BackwardCFunction)
)
#: Files of frames that lie between an op and who called it, when several dispatch modes are active.
_DISPATCH = (_OWN, *(f"{Path(torch.__file__).parent}/{name}" for name in ("_ops.py", "_compile.py", "_dynamo/")))
_MODULE = torch.nn.Module._call_impl.__code__


@dataclass(frozen=True)
class Place:
    """Where an op runs.

    Args:
        phase: "forward" (all outside autograd), "recompute" (a forward inside a backward), "backward", or "hook" (Python code
            that autograd calls with gradients).
        function: the custom autograd Function it is in, or `None`; torch's own are looked through.
        in_backward: whether that is the Function's backward.
        module: the innermost module whose forward is running.
        line: file and line of the innermost frame that is not torch's, inside that module where there is one, or `None`.
        site: the user's line.
        entry: the line in the Function's own `forward` or `backward`.
    """

    phase: str
    function: Any
    in_backward: bool
    module: Any
    line: tuple[str, int] | None
    site: Location | None
    entry: Location | None


def place(in_engine: bool, records: bool) -> Place:
    """Read the caller's stack.

    Args:
        in_engine: whether a backward is running.
        records: whether autograd records at the moment, in a backward that does not build a graph itself: a recomputation does.
    """
    frame: types.FrameType | None = sys._getframe(1)
    function = module = line = site = second = entry = last = None
    in_backward = forward_of_torch = python = False
    inside = True  # not yet beyond the innermost run of the engine
    while frame is not None:
        code = frame.f_code
        if not inside and site is not None:
            break
        if code is _ENGINE:
            inside = False
        elif inside and code is _MODULE:
            module = module if module is not None else frame.f_locals.get("self")
        else:
            rank = _rank(code.co_filename)
            if rank < 2:
                last = _location(code, frame.f_lineno)
                python |= inside
                if inside and line is None and module is None:
                    line = (code.co_filename, frame.f_lineno)
                if rank == 0:
                    site = site or last
                else:
                    second = second or last
            cls, forward = _custom(frame) if inside and function is None else (None, False)
            if cls is not None and not cls.__module__.startswith("torch."):
                function, in_backward, entry = cls, not forward, last
            forward_of_torch |= forward
        frame = frame.f_back
    applying = (function is not None and not in_backward) or forward_of_torch
    if not in_engine:
        phase = "forward"
    elif module is not None or applying or (python and records):
        phase = "recompute"
    else:
        phase = "hook" if python and function is None else "backward"
    return Place(phase, function, in_backward, module, line, site or second, entry)


def called_from_python() -> bool:
    """Whether the op that is being dispatched, in a backward, comes from Python code and not from autograd's own nodes."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_DISPATCH):
        frame = frame.f_back
    return frame is not None and frame.f_code is not _ENGINE


def function_of(error: BaseException) -> tuple[str, str] | None:
    """The custom autograd Function, and "forward" or "backward", that an exception came out of; `None` if out of none."""
    found: tuple[str, str] | None = None
    trace = error.__traceback__
    while trace is not None:
        cls, forward = _custom(trace.tb_frame)
        if cls is not None and not cls.__module__.startswith("torch."):
            found = (cls.__name__, "forward" if forward else "backward")
        elif trace.tb_frame.f_code is _MODULE:  # a module called from there has its own troubles
            found = None
        trace = trace.tb_next
    return found


def _custom(frame: types.FrameType) -> tuple[Any, bool]:
    """The autograd Function that a frame runs, and whether that is its forward; `(None, False)` if it runs none."""
    code = frame.f_code
    if code in _BACKWARD:
        return getattr(frame.f_locals.get("self"), "_forward_cls", None), False
    if _APPLY is not None:
        return (frame.f_locals.get("cls"), True) if code is _APPLY else (None, False)
    if code not in _FORWARDS:
        _FORWARDS[code] = next((c for c in _below(Function) if code is _code_of(vars(c).get("forward"))), None)
    cls = _FORWARDS[code]
    if cls is None:
        return None, False
    # a subclass may have inherited it: the context knows
    context = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return getattr(context, "_forward_cls", cls), True


#: Code -> the Function whose forward it is, or `None`.
_FORWARDS: dict[types.CodeType, Any] = {}


def _below(cls: type) -> Iterator[type]:
    inner: type
    for inner in cls.__subclasses__():
        yield inner
        yield from _below(inner)


def _code_of(method: Any) -> types.CodeType | None:
    """The code under a static method and its decorators, such as `custom_fwd`."""
    return getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
