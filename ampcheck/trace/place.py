"""Where in a training step an op runs: forward, recomputation, backward or a hook; in which module, custom Function and line.

All of it is read from the Python stack at the moment of the op, so nothing has to be patched and it does not matter how early
a Function's `apply` was bound to a name.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, Function

from ampcheck.findings import Location
from ampcheck.trace.sources import _OWN, _location, _rank

__all__ = ["Place", "called_from_python", "function_of", "place"]

_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_APPLY = Function.apply.__func__.__code__  # type: ignore[attr-defined]
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
        elif inside and function is None and (code is _APPLY or code in _BACKWARD):
            cls = frame.f_locals.get("cls") if code is _APPLY else getattr(frame.f_locals.get("self"), "_forward_cls", None)
            if cls is not None and not cls.__module__.startswith("torch."):
                function, in_backward, entry = cls, code is not _APPLY, last
            forward_of_torch |= code is _APPLY
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
        code, local = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code is _APPLY or code in _BACKWARD:
            cls = local.get("cls") if code is _APPLY else getattr(local.get("self"), "_forward_cls", None)
            if cls is not None and not cls.__module__.startswith("torch."):
                found = (cls.__name__, "forward" if code is _APPLY else "backward")
        elif code is _MODULE:  # a module called from there has its own troubles
            found = None
        trace = trace.tb_next
    return found
