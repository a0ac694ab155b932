"""Runs the call of a bundle again: the contract is built afresh, and given the states, generators and batch that were kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ampcheck.bundle.inputs import Inputs
from ampcheck.bundle.keeper import Watch
from ampcheck.bundle.snapshot import known, put_generators, put_states
from ampcheck.policy import Policy
from ampcheck.scenarios.drive import Built, drive

__all__ = ["Replayed", "replay"]


@dataclass
class Replayed:
    """What the call did this time.

    Args:
        reached: whether the run came as far as the call.
        steps: rows of `Watch.steps` of the call; `returned` and `raised` as in the bundle.
        not_finite: what was not finite, in words; `module` the first one that returned such a value.
        restored: what was put back; `lost` what could not be.
        before: what the bundle has under the same keys.
    """

    reached: bool = False
    steps: list[dict[str, Any]] = field(default_factory=list)
    returned: dict[str, float] = field(default_factory=dict)
    raised: str | None = None
    not_finite: list[str] = field(default_factory=list)
    module: dict[str, Any] | None = None
    restored: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    before: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reproduced(self) -> bool:
        """Whether something went wrong in the call again."""
        return bool(self.not_finite) and bool(self.before.get("not finite"))


class _Replay(Watch):
    """Makes the calls before the one of the bundle as they come, so that what a step hides moves on, then puts things back."""

    def __init__(self, bundle: Mapping[str, Any], result: Replayed) -> None:
        super().__init__()
        self.bundle, self.result = bundle, result
        self.wanted: int = bundle["call"]
        self._feed: Inputs | None = None

    def before_call(self, built: Built, call: int) -> None:
        super().before_call(built, call)
        self._feed = None
        if call != self.wanted:
            return
        result, states, batch = self.result, self.bundle["states"], self.bundle["batch"]
        result.reached = True
        with self._guarded():
            if states["kept"]:
                lost = list(put_states(built, states))
                result.lost += lost
                if len(lost) < len(states["parts"]):
                    result.restored.append("the states of modules, optimizers and scalers")
            result.lost += put_generators(self.bundle["rng"])
            result.restored.append("the random generators")
            if batch["kept"]:
                self._feed = Inputs(built.recorder, known(built), 0, batch["tensors"])

    def call(self, built: Built, step: Callable[[], object]) -> object:
        with self._feed or contextlib.nullcontext():
            return super().call(built, step)

    def after_call(self, built: Built, call: int) -> bool:
        super().after_call(built, call)
        return call == self.wanted

    def finished(self, built: Built) -> None:
        super().finished(built)
        feed = self._feed
        if feed is None:
            return
        held = len(self.bundle["batch"]["tensors"])
        if feed.failed or feed.found < held:
            self.result.lost.append(
                f"the batch: {feed.failed or f'the step reads {feed.found} tensors now, and {held} were kept'}"
            )
        else:
            self.result.restored.append(f"the batch ({held} tensors, of which {feed.replaced} had other values)")


def replay(make_step: Callable[[], object], bundle: Mapping[str, Any], name: str) -> Replayed:
    """Build the contract and run it up to the call of the bundle, which starts as it did then.

    Args:
        make_step: builds the contract.
        bundle: as `ampcheck.bundle.file.read` returns it.
        name: of the contract, for messages.

    Raises:
        ContractError: the contract returned something unusable.
    """
    result = Replayed(before=bundle["judged"])
    watch = _Replay(bundle, result)
    call: int = bundle["call"]
    trace = drive(make_step, Policy(), name=name, calls=call + 1, probes=[watch], stage=watch).trace
    result.steps = [row for row in watch.steps if row["call"] == call]
    result.returned = trace.returned[call] if call < len(trace.returned) else {}
    result.raised = None if trace.raised is None else str(trace.raised)
    result.not_finite = list(watch.not_finite.get(call, ()))
    result.module = watch.module
    if watch.failed:
        result.lost.append(f"an error of ampcheck's own: {watch.failed}")
    return result
