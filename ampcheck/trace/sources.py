"""Which line of the user's code did it: the first frame outside torch, the frameworks, the standard library and ampcheck."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from pathlib import Path

from ampcheck.findings import Location

__all__ = ["is_own", "of_callable", "of_exception", "user_site"]

_OWN = f"{Path(__file__).resolve().parent.parent}{os.sep}"
_REFERENCE = f"{_OWN}reference.py"
_STDLIB = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib")})


@functools.lru_cache(maxsize=4096)
def _rank(filename: str) -> int:
    """0: user code, 1: an installed package, 2: never the user's (torch, ampcheck, the standard library, no file)."""
    if filename.startswith(("<", _OWN)):
        return 0 if filename == _REFERENCE else 2  # the built-in contracts stand for a user's
    parts = Path(filename).parts
    if "site-packages" in parts or "dist-packages" in parts:
        owner = parts[max(i for i, part in enumerate(parts) if part in ("site-packages", "dist-packages")) + 1 :][:1]
        return 2 if owner in (("torch",), ("pytest",), ("_pytest",), ("pluggy",), ("xdist",)) else 1
    return 2 if filename.startswith(_STDLIB) else 0


def user_site(depth: int = 1) -> Location | None:
    """The innermost line of user code on the stack of the caller.

    A project that is itself installed in site-packages has no frame outside it: then the innermost frame that is not
    torch's, the standard library's or ours.
    """
    frame: types.FrameType | None = sys._getframe(depth)
    second: types.FrameType | None = None
    while frame is not None:
        rank = _rank(frame.f_code.co_filename)
        if rank == 0:
            return _location(frame.f_code, frame.f_lineno)
        if rank == 1 and second is None:
            second = frame
        frame = frame.f_back
    return None if second is None else _location(second.f_code, second.f_lineno)


def of_exception(error: BaseException) -> Location | None:
    """The deepest line of user code in the traceback of an exception, and of what caused it."""
    best: Location | None = None
    trace, second = error.__traceback__, None
    while trace is not None:
        code = trace.tb_frame.f_code
        rank = _rank(code.co_filename)
        if rank == 0:
            best = _location(code, trace.tb_lineno)
        elif rank == 1:
            second = _location(code, trace.tb_lineno)
        trace = trace.tb_next
    return best or second


def is_own(error: BaseException) -> bool:
    """Whether an exception came out of ampcheck's own code, not out of the contract's or torch's: then it is our bug."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = None if trace is None else trace.tb_frame.f_code
    if code is None or code.co_name in ("__torch_function__", "__torch_dispatch__"):
        return False  # a mode makes the contract's own call, which may fail in a kernel: there is no deeper frame
    return code.co_filename.startswith(_OWN) and code.co_filename != _REFERENCE


def of_callable(function: object) -> Location | None:
    """Where a function, a bound method, a partial or an object with `__call__` is defined, whatever is wrapped around it."""
    for _ in range(32):  # a cycle of wrappers would have no end
        inner = function.func if isinstance(function, functools.partial) else getattr(function, "__func__", None)
        function = inner or getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None) or getattr(type(function).__dict__.get("__call__"), "__code__", None)
    if not isinstance(code, types.CodeType) or _rank(code.co_filename) == 2:
        return None
    return _location(code, code.co_firstlineno)


def _location(code: types.CodeType, line: int) -> Location:
    return Location(code.co_filename, line, getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2])
