"""`ampcheck.scaler.probe`: silent on every kind of correct scaler, and right about faulty ones."""

from __future__ import annotations

import random
import re
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcheck.scaler.probe import Usage, probe
from ampcheck.trace.events import Event, OptimizerInfo, Trace


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def finite(optimizer: torch.optim.Optimizer) -> bool:
    return all(bool(torch.isfinite(g._values() if g.is_sparse else g).all()) for g in gradients(optimizer))


class Base:
    """Scales, divides and steps; subclasses say what an overflow and a clean step do to `cur_scale`."""

    def __init__(self, init_scale: float = 2.0**16) -> None:
        self.cur_scale = init_scale

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.cur_scale

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        overflow = not finite(optimizer)
        if not overflow:
            for gradient in gradients(optimizer):
                gradient.div_(self.cur_scale)
            optimizer.step()
        self.update_scale(overflow)

    def update_scale(self, overflow: bool) -> None:
        raise NotImplementedError


# Correct scalers, after the behaviour of what is in use ------------------------------------------------------------


class SequenceScaler(Base):
    """Doubles after a run of unskipped steps, halves on overflow, between two bounds; a static one looks for none."""

    def __init__(self, dynamic: bool = True, window: int = 20, min_loss_scale: float | None = None) -> None:
        super().__init__()
        self.dynamic, self._scale_seq_len, self._unskipped = dynamic, window, 0
        self._min_loss_scale, self._max_loss_scale = min_loss_scale, 2.0**24

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        overflow = not finite(optimizer)
        if not (overflow and self.dynamic):
            for gradient in gradients(optimizer):
                gradient.div_(self.cur_scale)
            optimizer.step()
        self.update_scale(overflow)

    def update_scale(self, overflow: bool) -> None:
        if overflow and self.dynamic:
            self.cur_scale, self._unskipped = max(self._min_loss_scale or 0.0, self.cur_scale / 2), 0
        else:
            self._unskipped += 1
        if self._unskipped == self._scale_seq_len and self.dynamic:
            self.cur_scale, self._unskipped = min(self._max_loss_scale, self.cur_scale * 2), 0


class DelayedShiftScaler(Base):
    """Counts iterations since the last overflow; a delayed shift forgives the first overflows; raises at the lowest scale."""

    def __init__(self, delayed_shift: int = 1, consecutive_hysteresis: bool = False, min_scale: float = 1.0) -> None:
        super().__init__()
        self.cur_iter, self.last_overflow_iter = 0, -1
        self.scale_factor, self.scale_window, self.min_scale = 2.0, 10, min_scale
        self.delayed_shift = self.cur_hysteresis = delayed_shift
        self.consecutive_hysteresis = consecutive_hysteresis

    def update_scale(self, overflow: bool) -> None:
        if overflow:
            if self.delayed_shift == 1 or self.cur_hysteresis == 1:
                if self.cur_scale == self.min_scale:
                    raise RuntimeError("current loss scale already at minimum")
                self.cur_scale = max(self.cur_scale / self.scale_factor, self.min_scale)
            else:
                self.cur_hysteresis -= 1
            self.last_overflow_iter = self.cur_iter
        else:
            if self.consecutive_hysteresis:
                self.cur_hysteresis = self.delayed_shift
            if (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
                if not self.consecutive_hysteresis:
                    self.cur_hysteresis = self.delayed_shift
                self.cur_scale *= self.scale_factor
        self.cur_iter += 1


class ToleranceScaler(Base):
    """Backs off only when the share of overflows since the last change is above a tolerance; a skip is an exception."""

    def __init__(self, tolerance: float = 0.0, scale_window: int = 8) -> None:
        super().__init__(2.0**15)
        self.tolerance, self.scale_window, self.min_loss_scale = tolerance, scale_window, 1e-4
        self.iteration, self.last_overflow, self.last_rescale, self.overflows = 0, -1, -1, 0

    def update_scale(self, overflow: bool) -> None:
        if overflow:
            self.last_overflow = self.iteration
            self.overflows += 1
            if self.overflows / (self.iteration - self.last_rescale) >= self.tolerance:
                self.cur_scale /= 2
                self.last_rescale, self.overflows = self.iteration, 0
            self.iteration += 1
            raise OverflowError(f"setting loss scale to {self.cur_scale}")
        if (self.iteration - self.last_overflow) % self.scale_window == 0:
            self.cur_scale *= 2
            self.last_rescale = self.iteration
        self.iteration += 1


class HysteresisScaler(Base):
    """A growth tracker and a hysteresis tracker, which growth refills, in tensors."""

    def __init__(self, hysteresis: int = 2, growth_interval: int = 12, min_scale: float = 1.0) -> None:
        super().__init__()
        self._scale = torch.tensor([2.0**16])
        self.growth_factor, self.backoff_factor = 2.0, 0.5
        self.growth_interval, self.hysteresis, self.min_scale = growth_interval, hysteresis, min_scale
        self._growth_tracker, self._hysteresis_tracker = 0, hysteresis

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self._scale.squeeze()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.cur_scale = self._scale.item()
        super().step(optimizer)

    def update_scale(self, overflow: bool) -> None:
        if overflow:
            self._growth_tracker = 0
            self._hysteresis_tracker -= 1
            if self._hysteresis_tracker <= 0:
                self._scale = torch.clamp(self._scale * self.backoff_factor, min=self.min_scale)
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self.growth_interval:
                self._growth_tracker, self._hysteresis_tracker = 0, self.hysteresis
                self._scale = self._scale * self.growth_factor


class ConsecutiveScaler(Base):
    """Backs off only at the third overflow in a row."""

    growth_interval, backoff_factor, growth_factor = 7, 0.5, 2.0

    def __init__(self, init_scale: float = 2.0**16) -> None:
        super().__init__(init_scale)
        self.bad = self.good = 0

    def update_scale(self, overflow: bool) -> None:
        self.bad, self.good = (self.bad + 1, 0) if overflow else (0, self.good + 1)
        if self.bad == 3:
            self.cur_scale, self.bad = self.cur_scale * self.backoff_factor, 0
        if self.good == self.growth_interval:
            self.cur_scale, self.good = min(self.cur_scale * self.growth_factor, 2.0**20), 0


class StaticScaler(Base):
    """Skips on overflow and keeps its scale; the attributes are those of a class that it replaces."""

    growth_interval, backoff_factor, growth_factor = 3, 0.5, 2.0

    def update_scale(self, overflow: bool) -> None:
        pass


class FlooredScaler(Base):
    """Stands at its floor, which no attribute tells."""

    growth_interval, backoff_factor, growth_factor = 5, 0.5, 2.0

    def __init__(self) -> None:
        super().__init__(2.0**10)
        self.good = 0

    def update_scale(self, overflow: bool) -> None:
        if overflow:
            self.cur_scale, self.good = max(self.cur_scale * self.backoff_factor, 2.0**10), 0
        else:
            self.good += 1
            if self.good % self.growth_interval == 0:
                self.cur_scale = min(self.cur_scale * self.growth_factor, 2.0**15)


class AdaptiveIntervalScaler(ConsecutiveScaler):
    """Waits longer after each growth."""

    def __init__(self) -> None:
        super().__init__()
        self.growth_interval = 4

    def update_scale(self, overflow: bool) -> None:
        if overflow:
            self.cur_scale, self.good = self.cur_scale / 2, 0
            return
        self.good += 1
        if self.good == self.growth_interval:
            self.growth_interval *= 2
            self.cur_scale, self.good = min(self.cur_scale * 2, 2.0**20), 0


class ClippingScaler(ConsecutiveScaler):
    """Takes a norm to clip to, and skips steps whose unscaled norm is a spike."""

    def step(self, optimizer: torch.optim.Optimizer, max_norm: float, spike: float = 20.0) -> float:  # type: ignore[override]
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters(optimizer), max_norm * self.cur_scale)) / self.cur_scale
        if norm < spike:
            for gradient in gradients(optimizer):
                gradient.div_(self.cur_scale)
            optimizer.step()
        else:
            self.cur_scale /= 2
        return norm

    @staticmethod
    def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"]]


class ProactiveScaler(ConsecutiveScaler):
    """Takes the step, and lowers the scale already when gradients come near the end of float16."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        near = finite(optimizer) and any(bool((g.abs() > 2.0**12).any()) for g in gradients(optimizer))
        super().step(optimizer)
        if near:
            self.cur_scale /= 2


class JudgedByLoop(Base):
    """`step` does not look for overflow: the loop asks `has_overflow` first."""

    growth_interval, backoff_factor, growth_factor = 5, 0.5, 2.0

    def has_overflow(self, optimizer: torch.optim.Optimizer) -> bool:
        return not finite(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        for gradient in gradients(optimizer):
            gradient.div_(self.cur_scale)
        optimizer.step()


class TorchSubclass(torch.amp.GradScaler):
    """Caps the scale after torch's own update."""

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        super().update(new_scale)
        assert self._scale is not None
        self._scale.clamp_(max=2.0**17)


class Wrapped:
    """Forwards to an inner scaler."""

    def __init__(self) -> None:
        self._scaler = torch.amp.GradScaler("cpu", growth_interval=4)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_scaler"], name)


CORRECT: list[tuple[str, Callable[[], Any], Usage]] = [
    ("torch", lambda: torch.amp.GradScaler("cpu"), Usage()),
    ("torch, short interval", lambda: torch.amp.GradScaler("cpu", growth_interval=1), Usage(unscale_calls=1)),
    ("torch, two optimizers", lambda: torch.amp.GradScaler("cpu", growth_interval=4), Usage(optimizers=2, sparse=True)),
    ("torch, uneven factors", lambda: torch.amp.GradScaler("cpu", 10.0, 1.5, 0.7, 3), Usage(sparse=True)),
    ("torch, steep backoff", lambda: torch.amp.GradScaler("cpu", 1.0, 2.0, 0.5, 3), Usage()),
    ("torch, disabled", lambda: torch.amp.GradScaler("cpu", enabled=False), Usage()),
    ("torch subclass", lambda: TorchSubclass("cpu", growth_interval=2), Usage(unscale_calls=1)),
    ("wrapped", Wrapped, Usage(unscale_calls=1)),
    ("sequence", SequenceScaler, Usage(updates=False)),
    ("sequence, static", lambda: SequenceScaler(dynamic=False), Usage(updates=False)),
    ("sequence, floor", lambda: SequenceScaler(min_loss_scale=2.0**15), Usage(updates=False, sparse=True)),
    ("delayed shift 1", DelayedShiftScaler, Usage(updates=False)),
    ("delayed shift 3", lambda: DelayedShiftScaler(3), Usage(updates=False)),
    ("delayed shift 3, consecutive", lambda: DelayedShiftScaler(3, True), Usage(updates=False)),
    ("at the minimum", lambda: DelayedShiftScaler(min_scale=2.0**16), Usage(updates=False)),
    ("tolerance 0", ToleranceScaler, Usage(updates=False)),
    ("tolerance 0.3", lambda: ToleranceScaler(0.3), Usage(updates=False)),
    ("hysteresis 1", lambda: HysteresisScaler(1), Usage(updates=False)),
    ("hysteresis 4", lambda: HysteresisScaler(4), Usage(updates=False, sparse=True)),
    ("hysteresis 30", lambda: HysteresisScaler(30), Usage(updates=False)),
    ("consecutive overflows", ConsecutiveScaler, Usage(updates=False)),
    ("static", StaticScaler, Usage(updates=False)),
    ("at a hidden floor", FlooredScaler, Usage(updates=False)),
    ("adaptive interval", AdaptiveIntervalScaler, Usage(updates=False)),
    ("clipping", ClippingScaler, Usage(updates=False, step_args=(0.1,))),
    ("skipping spikes", lambda: ClippingScaler(2.0**10), Usage(updates=False, step_args=(100.0,))),
    ("proactive", lambda: ProactiveScaler(2.0**10), Usage(updates=False)),
    ("judged by the loop", JudgedByLoop, Usage(updates=False)),
]


@pytest.mark.parametrize(("make", "usage"), [c[1:] for c in CORRECT], ids=[c[0] for c in CORRECT])
def test_silent_on_a_correct_scaler(make: Callable[[], Any], usage: Usage) -> None:
    found = probe(make(), usage)
    assert list(found) == []
    assert found.not_run == ""


@pytest.mark.parametrize("steps", [1, 3, 13])
@pytest.mark.parametrize(("make", "usage"), [c[1:] for c in CORRECT], ids=[c[0] for c in CORRECT])
def test_silent_in_the_middle_of_a_run(make: Callable[[], Any], usage: Usage, steps: int) -> None:
    """Some steps of a run, with an overflow, before the copy is taken."""
    scaler = make()
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(2.0**-16 * weight.sum()).backward()
        if step == 1 and not isinstance(scaler, JudgedByLoop):
            weight.grad[0] = float("inf")  # type: ignore[index]
        try:
            scaler.step(optimizer, *usage.step_args)
        except (OverflowError, RuntimeError):
            continue
        if usage.updates:
            scaler.update()
    assert list(probe(scaler, usage)) == []


# Faulty scalers ----------------------------------------------------------------------------------------------------


class Plain(Base):
    """A correct scaler in torch's terms, in pieces that each fault replaces one of."""

    def __init__(self, init_scale: float = 2.0**12, growth_interval: int = 6) -> None:
        super().__init__(init_scale)
        self.growth_factor, self.backoff_factor, self.growth_interval = 2.0, 0.5, growth_interval
        self.tracker, self.overflow = 0, False

    def seen(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [g._values() if g.is_sparse else g for g in gradients(optimizer)]

    def judge(self, grads: list[torch.Tensor]) -> bool:
        return not all(bool(torch.isfinite(g).all()) for g in grads)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        grads = self.seen(optimizer)
        overflow = self.judge(grads)
        self.overflow |= overflow
        for gradient in grads:
            gradient.div_(self.cur_scale)
        if not overflow:
            optimizer.step()

    def update(self) -> None:
        if self.overflow:
            self.back_off()
        else:
            self.tracker += 1
            if self.tracker == self.due():
                self.grow()
                self.tracker = 0
        self.overflow = False

    def due(self) -> int:
        return self.growth_interval

    def back_off(self) -> None:
        self.cur_scale, self.tracker = self.cur_scale * self.backoff_factor, 0

    def grow(self) -> None:
        self.cur_scale = min(self.cur_scale * self.growth_factor, 2.0**24)

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.cur_scale, "tracker": self.tracker}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cur_scale, self.tracker = state["scale"], state["tracker"]


class GrowsEarly(Plain):
    def due(self) -> int:
        return self.growth_interval - 1


class GrowsLate(Plain):
    def due(self) -> int:
        return self.growth_interval + 1


class KeepsTracker(Plain):
    def back_off(self) -> None:
        self.cur_scale *= self.backoff_factor


class NeverBacksOff(Plain):
    def back_off(self) -> None:
        self.tracker = 0


class BacksOffTwice(Plain):
    def back_off(self) -> None:
        super().back_off()
        super().back_off()


class GrowsOnOverflow(Plain):
    def back_off(self) -> None:
        self.cur_scale, self.tracker = self.cur_scale * self.growth_factor, 0


class ShrinksOnGrowth(Plain):
    def __init__(self) -> None:
        super().__init__(growth_interval=1)

    def grow(self) -> None:
        self.cur_scale *= self.backoff_factor


class GrowsTooMuch(Plain):
    def grow(self) -> None:
        self.cur_scale *= self.growth_factor**2


class GrowsForEver(Plain):
    def __init__(self) -> None:
        super().__init__(growth_interval=1)

    def grow(self) -> None:
        self.cur_scale *= self.growth_factor


class BacksOffToZero(Plain):
    def back_off(self) -> None:
        self.cur_scale = self.cur_scale / 2 if self.cur_scale > 2.0**4 else 0.0


class BacksOffSteeply(Base):
    def update_scale(self, overflow: bool) -> None:
        if overflow:
            self.cur_scale *= 0.01


class StepsAnyway(Plain):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        super().step(optimizer)
        if self.overflow:
            optimizer.step()


class FirstOnly(Plain):
    def judge(self, grads: list[torch.Tensor]) -> bool:
        return super().judge(grads[:1])


class BlindToNaN(Plain):
    def judge(self, grads: list[torch.Tensor]) -> bool:
        return any(bool(torch.isinf(g).any()) for g in grads)


class HalfSquares(Plain):
    def judge(self, grads: list[torch.Tensor]) -> bool:
        half = torch.cat([g.flatten() for g in grads]).half()
        return not bool(torch.isfinite((half * half).sum()))


class HalfNorm(Plain):
    def judge(self, grads: list[torch.Tensor]) -> bool:
        return not bool(torch.isfinite(torch.cat([g.flatten() for g in grads]).norm().half()))


class SparseScaled(Plain):
    def seen(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [g for g in gradients(optimizer) if not g.is_sparse]


class SparseUnseen(Plain):
    def judge(self, grads: list[torch.Tensor]) -> bool:
        return super().judge([g for g in grads if g.shape != (3, 1)])


class DividesTwice(Plain):
    def seen(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        grads = super().seen(optimizer)
        for gradient in grads:
            gradient.div_(self.cur_scale)
        return grads


class LastOptimizerOnly(Plain):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.overflow = False
        super().step(optimizer)


class ForgetsScale(Plain):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tracker = state["tracker"]


FAULTY: list[tuple[Callable[[], Any], Usage, str, str]] = [
    (GrowsEarly, Usage(), "AMP208", "growth"),
    (GrowsLate, Usage(), "AMP208", "growth"),
    (KeepsTracker, Usage(), "AMP208", "growth"),
    (NeverBacksOff, Usage(), "AMP208", "backoff"),
    (BacksOffTwice, Usage(), "AMP208", "backoff"),
    (GrowsOnOverflow, Usage(), "AMP208", "backoff"),
    (ShrinksOnGrowth, Usage(), "AMP208", "growth"),
    (GrowsTooMuch, Usage(), "AMP208", "growth"),
    (GrowsForEver, Usage(), "AMP205", "bounds"),
    (BacksOffToZero, Usage(), "AMP205", "bounds"),
    (BacksOffSteeply, Usage(updates=False), "AMP205", "bounds"),
    (StepsAnyway, Usage(), "AMP208", "skip"),
    (FirstOnly, Usage(), "AMP208", "skip"),
    (BlindToNaN, Usage(), "AMP208", "skip"),
    (HalfSquares, Usage(), "AMP208", "finite"),
    (HalfNorm, Usage(), "AMP208", "finite"),
    (SparseScaled, Usage(sparse=True), "AMP208", "sparse"),
    (SparseUnseen, Usage(sparse=True), "AMP208", "sparse"),
    (DividesTwice, Usage(), "AMP208", "unscale"),
    (LastOptimizerOnly, Usage(optimizers=2), "AMP208", "backoff"),
    (ForgetsScale, Usage(), "AMP208", "load"),
]


@pytest.mark.parametrize(("make", "usage", "check", "kind"), FAULTY, ids=[getattr(f[0], "__name__", "") for f in FAULTY])
def test_fault_is_found_and_its_script_shows_it(make: Callable[[], Any], usage: Usage, check: str, kind: str) -> None:
    (found,) = probe(make(), usage)
    assert (found.check, found.kind) == (check, kind)
    # The script runs by itself, once the one name that it asks for is there.
    exec("\n".join(found.script), {"build_scaler": make})


def test_the_plain_scaler_of_the_faults_is_correct() -> None:
    for usage in (Usage(), Usage(optimizers=2), Usage(sparse=True), Usage(optimizers=2, sparse=True)):
        assert list(probe(Plain(), usage)) == []


def test_declared_capabilities_come_before_attributes() -> None:
    scaler = Plain(growth_interval=6)
    (found,) = probe(scaler, Usage(), capabilities={"growth_interval": 9})
    assert found.expected == "growth after 9 clean updates in a row, its growth interval"
    assert found.seen == "growth after 6"


def test_nothing_that_the_loop_does_not_show_is_tried() -> None:
    assert list(probe(SparseScaled(), Usage())) == []
    assert list(probe(LastOptimizerOnly(), Usage())) == []
    calls: list[str] = []

    class Counting(Plain):
        def update(self) -> None:
            calls.append("update")
            super().update()

    probe(Counting(), Usage(updates=False))
    assert calls == []


def event(kind: str, optimizer: int | None = None, **data: Any) -> Event:
    return Event(kind, 0, scaler=0, optimizer=optimizer, data=data)


def test_usage_is_read_from_a_trace() -> None:
    iteration = [
        event("scale"),
        event("unscale", 0),
        event("unscale", 1),
        event("scaler_step", 0, extra=0),
        event("unscale", 0, implicit=True),
        event("scaler_step", 1, extra=0),
        event("update"),
    ]
    trace = Trace(events=iteration * 3, optimizers=[OptimizerInfo("SGD", sparse=True), OptimizerInfo("SGD")])
    assert Usage.of_trace(trace, 0) == Usage(optimizers=2, unscale_calls=1, sparse=True)


def test_usage_without_update_keeps_arguments_of_step() -> None:
    trace = Trace(events=[event("scaler_step", 0, extra=1, kwargs={"max_norm": 2.0})] * 3)
    assert Usage.of_trace(trace) == Usage(step_kwargs={"max_norm": 2.0}, updates=False)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "no step through the scaler"),
        ([event("scaler_step", 0, extra=1)], "something else than an optimizer and plain data"),
        ([event("scaler_step", 0, extra=1, args=(torch.zeros(2),))], "something else than an optimizer and plain data"),
        ([event("scaler_step", 0, extra=0), event("update", new_scale=4.0)], "sets the scale itself"),
    ],
)
def test_usage_that_cannot_be_repeated_is_not_run(events: list[Event], reason: str) -> None:
    found = probe(Plain(), Usage.of_trace(Trace(events=events)))
    assert reason in found.not_run


def test_leaves_the_scaler_and_the_process_alone(capsys: pytest.CaptureFixture[str]) -> None:
    class Loud(Plain):
        def back_off(self) -> None:
            print("OVERFLOW! skipping step")  # noqa: T201 - trainers do
            warnings.warn("overflow", stacklevel=2)
            torch.rand(3)
            random.random()
            super().back_off()

    scaler = Loud()
    before = dict(vars(scaler)), torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    with torch.no_grad():
        assert list(probe(scaler, Usage())) == []
        assert not torch.is_grad_enabled()
    assert vars(scaler) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert (random.getstate(), torch.get_num_threads()) == before[2:]
    assert capsys.readouterr() == ("", "")


def closure_scaler() -> Any:
    state = {"scale": 8.0}
    return types.SimpleNamespace(scale=lambda loss: loss * state["scale"], step=lambda optimizer: optimizer.step())


class Shared(Plain):
    def __deepcopy__(self, memo: Any) -> Shared:
        return self


class SharesInside(Plain):
    def __deepcopy__(self, memo: Any) -> SharesInside:
        other = SharesInside.__new__(SharesInside)
        other.__dict__ = self.__dict__
        return other


class NotCopied(Plain):
    def __deepcopy__(self, memo: Any) -> NotCopied:
        raise RuntimeError("holds a process group")


class OwnOptimizer(Plain):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        pass


class NeedsMore(Plain):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.master_params  # type: ignore[attr-defined]  # noqa: B018


class Callable_:
    """A wrapper that does it all in one call; it has neither scale() nor step()."""

    def __call__(self, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "usage", "reason"),
    [
        (closure_scaler, Usage(updates=False), "is a function of its own"),
        (Shared, Usage(), "its copy is itself"),
        (SharesInside, Usage(), "shares .*tracker"),
        (NotCopied, Usage(), "RuntimeError: holds a process group"),
        (OwnOptimizer, Usage(), "does not step a toy optimizer"),
        (NeedsMore, Usage(), "cannot be driven with toy parameters: AttributeError"),
        (Callable_, Usage(), r"no scale\(\) and step\(\)"),
        (Plain, Usage(optimizers=3), "more than two optimizers"),
        (Plain, Usage(unknown="step() is given a closure"), "closure"),
    ],
)
def test_says_why_it_was_not_run(make: Callable[[], Any], usage: Usage, reason: str) -> None:
    scaler = make()
    before = dict(vars(scaler))
    found = probe(scaler, usage)
    assert list(found) == []
    assert re.search(reason, found.not_run)
    assert vars(scaler) == before
