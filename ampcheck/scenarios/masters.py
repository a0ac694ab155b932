"""FP32 master copies of 16-bit parameters: which reachable tensor, rounded, gives the parameter, and goes on doing so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ampcheck.trace.digest import digest, local
from ampcheck.trace.reach import Reached
from ampcheck.trace.recorder import Recorder

__all__ = ["Masters", "owned"]

_WIDE = (torch.float32, torch.float64)
#: A flat tensor is searched for a parameter at any offset up to this many elements, in the order of the parameters beyond.
_SEARCHED = 2**22


def owned(recorder: Recorder) -> dict[int, torch.Tensor]:
    """The parameters of every optimizer by id."""
    return {id(p): p for index in range(len(recorder.optimizers)) for p in recorder.parameters(index)}


class Masters:
    """Looks for the masters of 16-bit parameters, before the first step and after later ones.

    A tensor is a master where rounding it gives the parameter to the bit, and it holds more than the parameter does. One that
    an optimizer holds, as a parameter, in its state or in an attribute, is taken at once. One from elsewhere could be an
    average that still rounds to a parameter that does not move: it counts only where the parameter has moved.
    """

    def __init__(self) -> None:
        self.found: dict[int, str] = {}
        #: ids of 16-bit parameters that an optimizer's FP32 parameter was a copy of, before any step
        self.copied: dict[int, str] = {}
        #: those whose master, between two steps, was made anew from what was rounded
        self.remade: dict[int, str] = {}
        self._first: dict[int, Any] = {}
        self._values: dict[int, tuple[torch.Tensor, torch.dtype]] = {}
        self._ahead: set[int] = set()
        self.looks = 0

    def look(self, low: dict[int, torch.Tensor], reached: Reached, recorder: Recorder) -> None:
        """Compare each of the parameters `low` (id -> tensor) with what is reachable now."""
        low = {k: p for k, p in low.items() if p.numel()}
        stepped = bool(recorder.trace.steps)
        digests = dict(zip(low, digest(list(low.values())), strict=True))
        candidates = list(_candidates(reached, recorder, {id(p) for p in low.values()}))
        live: dict[int, str] = {}
        equal: dict[int, str] = {}
        for key, path, tensor, inside in _matches(low, digests, candidates):
            if not stepped and inside == "parameter":
                self.copied.setdefault(key, path)
                self._values.setdefault(key, (tensor, low[key].dtype))
            if inside == "" and digests[key] == self._first.get(key, digests[key]):
                continue
            more = not torch.equal(local(tensor), low[key].reshape(tensor.shape).to(tensor.dtype))
            (live if more else equal).setdefault(key, path)
        for key, value in digests.items():
            self._first.setdefault(key, value)
        if stepped:
            self.looks += 1
            if live:  # a parameter without a gradient has a master that holds no more than it does
                self.found.update({k: v for k, v in equal.items() if k not in self.found})
                self.found.update(live)

    def step(self, entering: bool) -> None:
        """An optimizer steps, or has: does every master still hold what the 16-bit parameter cannot?"""
        holding = {key for key, value in self._values.items() if _holds_more(*value)}
        if entering:
            self.remade.update((key, self.copied[key]) for key in self._ahead - holding)
        self._ahead = set() if entering else holding

    def of(self, parameter: torch.Tensor) -> str:
        """Path of the parameter's master, or ""; before any step, a copy that an optimizer holds is believed."""
        if self.looks:
            return self.found.get(id(parameter), "")
        return self.copied.get(id(parameter), "")

    def stale(self, parameter: torch.Tensor) -> str:
        """Path of the FP32 parameter that was its copy, is trained, and does not round to it any more; else ""."""
        return self.copied.get(id(parameter), "") if self.looks and id(parameter) not in self.found else ""


def _holds_more(values: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether FP32 values are not those of a 16-bit dtype."""
    return not torch.equal(values.to(dtype).to(values.dtype), values)


def _candidates(reached: Reached, recorder: Recorder, own: set[int]) -> Iterator[tuple[str, torch.Tensor, str]]:
    """`(path, tensor, where)` of the FP32 tensors: where is "parameter" or "state" of an optimizer, or ""."""
    parameters = owned(recorder)
    held = tuple(f"{path}." for path in reached.optimizers)
    seen: set[int] = set()
    for path, tensor in reached.tensors.items():
        if tensor.dtype in _WIDE and tensor.layout is torch.strided and id(tensor) not in own:
            seen.add(id(tensor))
            inside = "parameter" if id(tensor) in parameters else "state" if path.startswith(held) else ""
            yield path, tensor, inside
    for number, optimizer in enumerate(recorder.optimizers):  # what the step does not reach by itself
        for tensor in _tensors(getattr(optimizer, "state", {})):
            if tensor.dtype in _WIDE and tensor.layout is torch.strided and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"state of optimizer {number}", tensor, "state"
    for tensor in parameters.values():
        if tensor.dtype in _WIDE and tensor.layout is torch.strided and id(tensor) not in seen:
            yield "a parameter of the optimizer", tensor, "parameter"


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    for slots in list(getattr(state, "values", list)()):
        for value in slots.values() if isinstance(slots, dict) else ():
            if isinstance(value, torch.Tensor):
                yield value


def _matches(
    low: dict[int, torch.Tensor], digests: dict[int, Any], candidates: Iterable[tuple[str, torch.Tensor, str]]
) -> Iterator[tuple[int, str, torch.Tensor, str]]:
    """`(id of a parameter, path, the FP32 values, where)` for every candidate that rounds to a parameter, to the bit."""
    dtypes = {p.dtype for p in low.values()}
    by_size: dict[tuple[torch.dtype, int], list[int]] = {}
    for key, p in low.items():
        by_size.setdefault((p.dtype, local(p).numel()), []).append(key)
    least = min((p.numel() for p in low.values()), default=0)
    for path, tensor, inside in candidates:
        values = local(tensor)
        for dtype in dtypes:
            keys = by_size.get((dtype, values.numel()), [])
            flat = values.dim() == 1 and values.numel() > least
            if not keys and not flat:
                continue
            rounded = values.to(dtype).flatten()
            bits = digest([rounded])[0] if keys else None
            for key in keys:
                same = bits is not None and bits[0] == digests[key][0]
                if same and torch.equal(rounded, local(low[key]).flatten()):
                    yield key, path, values, inside
            if flat and inside:
                yield from _slices(rounded, values, low, dtype, path, inside)


def _slices(
    rounded: torch.Tensor, values: torch.Tensor, low: dict[int, torch.Tensor], dtype: torch.dtype, path: str, inside: str
) -> Iterator[tuple[int, str, torch.Tensor, str]]:
    """The parameters that lie one after the other in a flat FP32 tensor."""
    position = 0
    for key, p in low.items():
        size = p.numel()
        if p.dtype != dtype or size >= rounded.numel():
            continue
        wanted = local(p).flatten()
        offsets = [position]
        if rounded.numel() <= _SEARCHED:
            offsets += (rounded[: rounded.numel() - size + 1] == wanted[0]).nonzero().flatten()[:16].tolist()
        for offset in offsets:
            if torch.equal(rounded[offset : offset + size], wanted):
                yield key, f"{path}[{offset}:{offset + size}]", values[offset : offset + size], inside
                position = offset + size
                break
