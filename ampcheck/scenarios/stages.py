"""The gradient of one optimizer step, stage by stage, compared between two runs.

The reference run leaves copies in host memory of one step's gradients: after the last backward, before and after `unscale_`, at
the optimizer, and of the update. The other run is compared with them as it goes, and leaves numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ampcheck.policy import Policy
from ampcheck.scenarios.custom import ForceScale
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.differences import Difference
from ampcheck.trace.digest import local, relative_difference
from ampcheck.trace.events import Event
from ampcheck.trace.recorder import Probe, Recorder

__all__ = ["StageProbe", "compare_at"]


class StageProbe(Probe):
    """Hands over the gradients of one optimizer step at each stage, from the end of that optimizer's last step on.

    Args:
        step: the optimizer's index, and how many steps it took before; where the index is `None`, of all optimizers.
        sink: called with (stage, optimizer index, one tensor or `None` for each parameter).
    """

    def __init__(self, step: tuple[int | None, int], sink: Callable[[str, int, list[torch.Tensor | None]], None]) -> None:
        (self.optimizer, self.ordinal), self.sink = step, sink
        self.taken = 0
        self._before: list[torch.Tensor] = []

    @property
    def active(self) -> bool:
        return self.taken == self.ordinal

    def _own(self, index: int | None) -> bool:
        return index is not None and self.optimizer in (None, index)

    def _gradients(self, recorder: Recorder, index: int) -> list[torch.Tensor | None]:
        return [p.grad for p in recorder.parameters(index)]

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        if self.active:
            for index in filter(self._own, event.get("optimizers", ())):
                self.sink("backward", index, self._gradients(recorder, index))

    def unscale(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if self.active and event.optimizer is not None and self._own(event.optimizer):
            self.sink(
                "before unscale_" if entering else "after unscale_", event.optimizer, self._gradients(recorder, event.optimizer)
            )

    def scaler_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if self.active and entering and event.optimizer is not None and self._own(event.optimizer):
            self.sink("scaler.step", event.optimizer, self._gradients(recorder, event.optimizer))

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        index = event.optimizer
        if index is None or not self._own(index):
            return
        if entering and self.active:
            scale = getattr(optimizer, "grad_scale", None)
            gradients = self._gradients(recorder, index)
            if isinstance(scale, torch.Tensor):
                gradients = [None if g is None else local(g) / scale.to(g.device) for g in gradients]
            self.sink("optimizer", index, gradients)
            self._before = [p.detach().to("cpu", copy=True) for p in recorder.parameters(index)]
        elif not entering and event.get("took"):
            if self.active and self._before:
                moved = [p.detach().to("cpu") - old for p, old in zip(recorder.parameters(index), self._before, strict=False)]
                self.sink("update", index, list(moved))
                self._before = []
            self.taken += 1


def compare_at(
    spec: Spec, reference: Policy, other: Policy, calls: int, step: tuple[int | None, int]
) -> dict[str, list[Difference]]:
    """Compare a step of a run under `other` with the same one of a run under `reference`; see `StageProbe` for `step`.

    Returns:
        stage -> one `Difference` for each parameter that has a gradient in both, in the order of the run.
    """
    kept: dict[tuple[str, int], list[torch.Tensor | None]] = {}
    found: dict[tuple[str, int], list[tuple[int, float, float]]] = {}
    last: list[int] = []

    def keep(stage: str, index: int, tensors: list[torch.Tensor | None]) -> None:
        kept[stage, index] = [None if t is None else local(t).to("cpu", copy=True) for t in tensors]
        if stage == "update":
            last.append(index)

    def compare(stage: str, index: int, tensors: list[torch.Tensor | None]) -> None:
        before = kept.get((stage, index))
        if before is None:
            return
        found[stage, index] = [
            (
                i,
                *relative_difference(t, b.to(t.device)),
            )  # where the tensor lies: in float64 a CPU takes minutes for a large model
            for i, (t, b) in enumerate(zip(tensors, before, strict=False))
            if t is not None and b is not None
        ]

    spec.run("focus", reference, calls=calls, probes=[StageProbe(step, keep)], stage=ForceScale(reference))
    run = spec.run("focus", other, calls=calls, probes=[StageProbe(step, compare)], stage=ForceScale(other))
    if not last:
        return {}
    target = last[0]
    names = run.names.get(target, [])
    return {
        stage: [Difference(names[i] if i < len(names) else f"parameter {i}", relative, ratio) for i, relative, ratio in rows]
        for (stage, index), rows in found.items()
        if index == target
    }
