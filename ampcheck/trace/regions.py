"""Which autocast regions the code is inside of, for each thread.

Inside of an op autocast itself cannot be asked: it is off there.
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.findings import Location
from ampcheck.trace.ops import Foreign
from ampcheck.trace.patches import PatchSet
from ampcheck.trace.sources import user_site

__all__ = ["Regions", "State"]

#: Modules that only stand between a region and the code that entered it: decorators, exit stacks.
_BETWEEN = ("torch.amp.autocast_mode", "torch.cuda.amp.autocast_mode", "torch.cpu.amp.autocast_mode", "contextlib", "functools")


@dataclass(frozen=True)
class State:
    """What is in force for tensors of one device type.

    Args:
        dtype: of the region, or "off".
        island: off inside an enabled region of the same device type.
        foreign: the innermost region of the user's own that is for another device type, above any for this one.
    """

    dtype: str
    island: bool = False
    foreign: Foreign | None = None


@dataclass(frozen=True)
class _Region:
    device: str
    enabled: bool
    dtype: str
    asked: bool
    site: Location | None
    internal: bool


class Regions:
    """Follows `torch.autocast` from `install` on."""

    def __init__(self) -> None:
        self.main = threading.get_ident()
        self._made: weakref.WeakKeyDictionary[Any, tuple[bool, Location | None]] = weakref.WeakKeyDictionary()
        self._unused: dict[Location, str] = {}
        self._used: set[Location | None] = set()
        self._stacks: dict[int, list[_Region]] = {}
        self._outermost: dict[int, int] = {}
        self._states: dict[tuple[int, str], State] = {}
        self._base: dict[str, str] = {}
        self._entered = 0

    def install(self, patches: PatchSet, entered: Callable[[Any, bool, Location | None], None]) -> None:
        """Patch `torch.autocast`; `entered` is told of each region, whether it was asked to be enabled, and the line."""
        cls: Any = torch.amp.autocast_mode.autocast
        init, enter, leave = cls.__init__, cls.__enter__, cls.__exit__

        def made(region: Any, *args: Any, **kwargs: Any) -> None:
            init(region, *args, **kwargs)
            # torch switches a region for a device that is not there off, and forgets what was asked for
            asked = bool(kwargs.get("enabled", args[2] if len(args) > 2 else True))
            site = user_site(2)
            self._made[region] = asked, site
            if asked and site is not None and not _internal(sys._getframe(1)):
                self._unused.setdefault(site, region.device)

        def on_enter(region: Any) -> Any:
            asked, made_at = self._made.get(region, (bool(region._enabled), None))
            self._used.add(made_at)
            wanted = bool(region._enabled), str(region.fast_dtype).removeprefix("torch.")
            result = enter(region)
            site = user_site(2)
            self._push(_Region(region.device, *wanted, asked, site, _internal(sys._getframe(1))))
            entered(region, asked, site)
            return result

        def on_exit(region: Any, *exc: Any) -> Any:
            self._pop()
            return leave(region, *exc)

        patches.set(cls, "__init__", made)
        patches.set(cls, "__enter__", on_enter)
        patches.set(cls, "__exit__", on_exit)

    def _push(self, region: _Region) -> None:
        thread = threading.get_ident()
        stack = self._stacks.setdefault(thread, [])
        if not stack:
            self._entered += 1
            self._outermost[thread] = self._entered
        stack.append(region)
        self._states.clear()

    def _pop(self) -> None:
        stack = self._stacks.get(threading.get_ident())
        if stack:
            stack.pop()
            self._states.clear()

    def never_entered(self) -> dict[Location, str]:
        """Line -> device type of the enabled regions that were made and never entered."""
        return {site: device for site, device in self._unused.items() if site not in self._used}

    def begin(self) -> None:
        """A call begins: note what is in force already, outside of any region that was seen being entered."""
        if not self._stacks.get(self.main):
            self._base = {
                device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
                if torch.is_autocast_enabled(device)
                else "off"
                for device in ("cpu", "cuda")
            }
            self._states.clear()

    def inside(self, thread: int) -> bool:
        """Whether a thread is inside any region that it entered itself."""
        return bool(self._stacks.get(thread))

    def outermost(self, thread: int) -> int:
        """A number that is the same for all that happens inside one outermost region; 0 outside."""
        return self._outermost.get(thread, 0) if self._stacks.get(thread) else 0

    def state(self, device: str, thread: int) -> State:
        """What is in force for tensors of a device type in a thread; autograd's own threads have that of the step."""
        known = self._states.get((thread, device))
        if known is None:
            known = self._states[thread, device] = self._find(device, self._stacks.get(thread, []), thread == self.main)
        return known

    def _find(self, device: str, stack: list[_Region], main: bool) -> State:
        foreign: Foreign | None = None
        for depth in range(len(stack) - 1, -1, -1):
            region = stack[depth]
            if region.device == device:
                around = any(r.device == device and r.enabled for r in stack[:depth])
                return State(region.dtype if region.enabled else "off", not region.enabled and around, foreign)
            if foreign is None and not region.internal:
                foreign = Foreign(region.device, region.asked, region.site)
        return State(self._base.get(device, "off") if main else "off", False, foreign)


def _internal(frame: types.FrameType | None) -> bool:
    """Whether torch entered the region for itself (activation checkpointing does, for several device types)."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in _BETWEEN:
            return name.partition(".")[0] == "torch"
        frame = frame.f_back
    return False
