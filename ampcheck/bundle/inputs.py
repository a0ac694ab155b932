"""What a step reads that it neither made nor trains: its batch, as far as ops can tell.

A tensor counts where the forward first computes with it and its memory is no parameter, buffer or state and was not made in
this call. So whatever is drawn from a generator in the call is left to the generator, and constants of the code may be in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from ampcheck.trace.recorder import Recorder

__all__ = ["Inputs"]

#: What an optimizer or a scaler reads is no batch.
_NOT_HERE = ("optimizer_step", "scaler_step", "unscale", "update", "load_state")


class Inputs(TorchDispatchMode):
    """Enter it around one call of the step.

    Args:
        recorder: of the run.
        known: parameters, buffers and states.
        limit: bytes that are copied; beyond it nothing is kept.
        feed: tensors to put in place of those that are read, in their order; nothing is copied then.
    """

    def __init__(
        self, recorder: Recorder, known: Iterable[torch.Tensor], limit: int, feed: Sequence[torch.Tensor] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder, self.limit, self.feed = recorder, limit, feed
        self.kept: list[torch.Tensor] = []
        self.found = self.bytes = self.replaced = 0
        self.failed = ""
        self._seen: Any = WeakIdKeyDictionary()
        # the weak references keep the addresses from being used again, so that they identify the storages
        self._storages: dict[int, StorageWeakRef] = {}
        for tensor in known:
            self._mark(tensor)

    def _mark(self, tensor: torch.Tensor) -> None:
        if tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = StorageWeakRef(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not views and not self.failed:
            try:
                self._look(args, kwargs)
            except Exception as error:  # the step goes on, whatever becomes of us
                self.failed = f"{type(error).__name__}: {error}"
        result = func(*args, **kwargs)
        if not views and not self.failed:
            given = {t.untyped_storage()._cdata for t in _tensors((args, kwargs)) if t.layout is torch.strided}
            for tensor in _tensors(result):
                if tensor.layout is torch.strided and tensor.untyped_storage()._cdata not in given:
                    self._mark(tensor)
        return result

    def _look(self, args: Any, kwargs: Any) -> None:
        recorder = self.recorder
        if recorder.engine_depth or any(recorder.trace.events[i].kind in _NOT_HERE for i in recorder.open):
            return
        for tensor in _tensors((args, kwargs)):
            if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor in self._seen:
                continue
            known = self._storages.get(tensor.untyped_storage()._cdata)
            if known is not None and not known.expired():
                continue
            self._seen[tensor] = True
            with _disable_current_modes(), torch.no_grad():
                self._read(tensor)
            self.found += 1

    def _read(self, tensor: torch.Tensor) -> None:
        if self.feed is not None:
            held = self.feed[self.found] if self.found < len(self.feed) else None
            if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
                return
            held = held.to(tensor.device, copy=True)
            if not torch.equal(held, tensor):
                # Another memory under the same tensor: what the user's may be mapped to is not written to.
                tensor.data = held
                self.replaced += 1
                self._seen[tensor] = True
            return
        self.bytes += tensor.numel() * tensor.element_size()
        if self.bytes <= self.limit:
            self.kept.append(tensor.detach().to("cpu", copy=True).contiguous())
        else:
            self.kept.clear()

    def report(self) -> dict[str, Any]:
        """What goes into the bundle: `kept`, `reason`, `bytes`, `tensors`."""
        if self.failed:
            return {"kept": False, "reason": f"an error of ampcheck's own: {self.failed}", "bytes": 0, "tensors": []}
        if self.bytes > self.limit:
            reason = f"it has {self.bytes} bytes, more than the {self.limit} that --ampcheck-evidence-batch allows"
            return {"kept": False, "reason": reason, "bytes": self.bytes, "tensors": []}
        return {"kept": True, "reason": "", "bytes": self.bytes, "tensors": list(self.kept)}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
