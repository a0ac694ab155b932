"""Tries a copy of a contract's own scaler on toy parameters and says where it contradicts itself or every loss scaler.

Deterministic, without Hypothesis, and shy: only what the natural run shows is tried, only what the scaler's own attributes
or the declared capabilities tell is judged, and what may be a choice (a static scale, a floor, hysteresis, a tolerance for
overflows) is never reported. `ampcheck.scaler_contract` is the strict tool for a scaler class.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ampcheck.scaler.capabilities import attributes
from ampcheck.scaler.session import quiet_torch
from ampcheck.scaler.trial import Discrepancy, Trial, Usage

__all__ = ["Discrepancies", "Discrepancy", "Usage", "probe"]

#: With 256 elements, a sum of squares passes the largest float16 (65504) between values of 2^3
#: and 2^5, and a norm between 2^11 and 2^13: far apart, so that a threshold of the user's own is not taken for either.
HALF_LIMITS = {"sum of squares": (2.0**3, 2.0**5), "norm": (2.0**11, 2.0**13)}
#: The scale must stay in here over 20 overflows in a row, the rule of AMP205.
LOWEST = 2.0**-24
OVERFLOWS = 20
#: Clean updates that are tried where the interval is not known or long, and the longest interval that is waited for.
CLEAN, LONGEST_INTERVAL = 60, 200
#: Updates with gradients of zero, in which growth without a cap shows.
ENDLESS = 400


class Discrepancies(list[Discrepancy]):
    """What `probe` found. `not_run` says why nothing could be tried; it is empty where the scaler was judged."""

    not_run: str = ""


class _NotRun(Exception):
    """The scaler does not work on toy parameters, so nothing can be said about it."""


class _Prober:
    """All sequences over copies of one scaler. Each yields at most one discrepancy."""

    def __init__(self, scaler: Any, usage: Usage, capabilities: Mapping[str, Any], device: str) -> None:
        self.scaler, self.usage, self.device = scaler, usage, device
        declared = {k: v for k, v in capabilities.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        #: What is sure to mean what torch means by it, and what is likely to.
        self.sure: dict[str, float] = {**attributes(scaler, torch_names_only=True), **declared}
        self.known: dict[str, float] = {**attributes(scaler), **declared}
        self.exact = False
        self.grown: Trial | None = None
        self.backs_off = False

    def trial(self, first: str = "a") -> Trial:
        return Trial(self.scaler, self.usage, self.device, first=first)

    def run(self) -> Iterable[Discrepancy]:
        before = _numbers(self.scaler)
        try:
            first = self.calibrate()
        finally:
            changed = _put_back(self.scaler, before)
        if changed:
            raise _NotRun(f"a copy of the scaler shares {', '.join(changed)} with it")
        # The order matters: whether the scaler sees overflows by itself decides what later sequences may conclude.
        yield from first
        yield from itertools.chain(self.overflow(), self.growth(), self.no_backoff(), self.places(), self.large())
        yield from itertools.chain(self.sparse(), self.both(), self.load(), self.endless())

    def calibrate(self) -> list[Discrepancy]:
        """Two clean iterations: does the scaler work on toy parameters at all, and exactly?"""
        trial = self.trial()
        if not math.isfinite(trial.scale) or trial.scale <= 0.0:
            return [trial.differs("scale", "AMP205", "a finite scale above 0", f"scale {trial.scale!r} to begin with")]
        try:
            trial.iterate()
            result = trial.iterate()
        except Exception as error:
            raise _NotRun(f"the scaler cannot be driven with toy parameters: {type(error).__name__}: {error}") from error
        if result.skipped or result.corrupted:
            raise _NotRun("the scaler does not step a toy optimizer")
        self.exact = _all_close(result.moves, -trial.slope)
        if result.before >= 4.0 and _all_close(result.moves, -trial.slope / result.before):
            expected = "the gradient is divided by the scale once"
            return [trial.differs("unscale", "AMP208", expected, "it is divided by the scale twice")]
        return []

    def overflow(self) -> Iterator[Discrepancy]:
        """20 overflows from the scaler's own scale."""
        trial = self.trial()
        start, rises = trial.scale, 0
        for result in trial.overflows(OVERFLOWS):
            rises = rises + 1 if result.after > result.before else 0
            fell = result.after < result.before
            self.backs_off |= fell
            if not math.isfinite(result.after) or result.after <= 0.0:
                yield trial.differs("bounds", "AMP205", "a finite scale above 0 after overflows", f"scale {result.after!r}")
                return
            if rises == 2:
                yield trial.differs("backoff", "AMP208", "an overflow lowers the scale", f"the scale rises to {result.after!r}")
                return
            factor = self.sure.get("backoff_factor")
            if fell and factor is not None and result.after < result.before * factor * 0.999:
                expected = f"scale {result.before * factor!r} after an overflow (backoff_factor {factor!r})"
                yield trial.differs("backoff", "AMP208", expected, f"scale {result.after!r}")
                return
            if fell and result.corrupted:
                seen = "the scale backs off, but the step is taken"
                yield trial.differs("skip", "AMP208", "step skipped: a gradient is inf", seen)
                return
            if result.corrupted:
                return
        # Halving is what torch does, unless told another factor; from a low scale of the loop's own it may honestly end below the bound.
        told = self.sure.get("backoff_factor", 0.5)
        if trial.scale < LOWEST and trial.scale < start * (min(told, 0.5) if told > 0.0 else 0.5) ** OVERFLOWS * 0.999:
            expected = f"scale of at least 2^-24 after {OVERFLOWS} overflows"
            yield trial.differs("bounds", "AMP205", expected, f"scale {trial.scale!r}")

    def growth(self) -> Iterator[Discrepancy]:
        """Clean updates, over two intervals of growth if that is not too long, after an overflow that starts the count."""
        trial = self.trial()
        shown = attributes(self.scaler).get("growth_interval")
        interval = self.known.get("growth_interval")
        wait = int(interval) + 2 if interval is not None and interval <= LONGEST_INTERVAL else CLEAN
        started = [*trial.clean(2), *trial.overflows(1)]
        reset = len(started) == 3 and started[-1].after < started[-1].before
        windows: list[int] = []
        count = falls = 0
        for result in trial.clean(2 * wait):
            count += 1
            falls = falls + 1 if result.after < result.before else 0
            if falls == 2:
                seen = f"the scale falls to {result.after!r}"
                yield trial.differs("growth", "AMP208", "no backoff without an overflow", seen)
                return
            if result.after > result.before:
                if self.exact and _all_close(result.moves, -trial.slope * result.before / result.after):
                    expected = f"gradients that were scaled by {result.before!r} are divided by it"
                    seen = f"they are divided by {result.after!r}: the scale grows before the step"
                    yield trial.differs("unscale", "AMP208", expected, seen)
                    return
                self.grown = trial
                windows, count = [*windows, count], 0
                factor = self.sure.get("growth_factor")
                if factor is not None and result.after > result.before * factor * 1.001:
                    expected = f"scale {result.before * factor!r} after growth (growth_factor {factor!r})"
                    yield trial.differs("growth", "AMP208", expected, f"scale {result.after!r}")
                    return
            if len(windows) == 2:
                break
        # An interval that is itself a variable is not what the scaler started with.
        varies = attributes(trial.session.scaler).get("growth_interval") != shown
        if interval is None or varies or len(windows) < 2:
            return
        expected, second = f"growth after {int(interval)} clean updates in a row, its growth interval", windows[1]
        sure = "growth_interval" in self.sure
        if second < interval or (second > interval and sure):
            yield trial.differs("growth", "AMP208", expected, f"growth after {second}")
        elif windows[0] < interval and reset and sure:
            seen = f"growth {windows[0]} clean updates after an overflow, which did not start the count again"
            yield trial.differs("growth", "AMP208", expected, seen)

    def no_backoff(self) -> Iterator[Discrepancy]:
        """A scale that has grown is above any floor, so that 20 overflows must lower it; a static scale does not grow."""
        trial = self.grown
        if trial is None or self.known.get("hysteresis", 1) > OVERFLOWS / 2:
            return
        start = trial.scale
        results = list(trial.overflows(OVERFLOWS))
        if len(results) == OVERFLOWS and all(r.after >= r.before for r in results):
            expected = f"a scale below {start!r} after {OVERFLOWS} overflows"
            yield trial.differs("backoff", "AMP208", expected, f"scale {trial.scale!r}")

    def places(self) -> Iterator[Discrepancy]:
        """inf, -inf and NaN in other places are overflows too, for a scaler that sees one in the first element."""
        last = self.trial().session.elements("a0") - 1
        for plant in (("a0", last, math.inf), ("a1", 0, -math.inf), ("a1", 1, math.nan), ("a0", 0, math.nan)):
            trial = self.trial()
            if self.backs_off and any(result.corrupted for result in trial.overflows(1, plant)):
                expected = "step skipped: element {1} of {0}.grad is {2}".format(*plant)
                yield trial.differs("skip", "AMP208", expected, "step taken")
                return

    def large(self) -> Iterator[Discrepancy]:
        """Finite gradients are no overflow, however large their norm or its square would be in float16."""
        for what, (below, above) in HALF_LIMITS.items():
            if self.thrown_away(below) is not None:
                return
            trial = self.thrown_away(above)
            if trial is not None:
                expected = f"step taken: every gradient is finite, the largest is {above!r}"
                seen = f"step skipped, and the scale falls to {trial.scale!r}; in float16 their {what} would not be finite"
                yield trial.differs("finite", "AMP208", expected, seen)
                return

    def thrown_away(self, fill: float) -> Trial | None:
        """A trial in which finite gradients were taken for an overflow, three times if that is what it takes to back off."""
        trial = self.trial()
        for _ in range(3):
            try:
                result = trial.iterate(fill=fill)
            except Exception:
                return None
            if not result.skipped:
                return None
            if result.after < result.before:
                return trial
        return None

    def sparse(self) -> Iterator[Discrepancy]:
        """Sparse gradients are unscaled and looked at, where the loop has some."""
        if not self.usage.sparse or not self.exact:
            return
        trial = self.trial("table")
        try:
            result = trial.iterate()
            scaled = [-trial.slope * result.before, 0.0, -2 * trial.slope * result.before]
            if result.before >= 4.0 and all(map(_close, result.moves, scaled)):
                expected = "sparse gradients are divided by the scale as dense ones are"
                yield trial.differs("sparse", "AMP208", expected, "they are applied while scaled")
                return
            result = trial.iterate(plant=("table", 0, math.inf))
        except Exception:
            return
        if self.backs_off and result.corrupted:
            yield trial.differs("sparse", "AMP208", "step skipped: a sparse gradient is inf", "step taken")

    def both(self) -> Iterator[Discrepancy]:
        """With two optimizers, an overflow in either is one."""
        if self.usage.optimizers != 2:
            return
        fell = {}
        for parameter in ("a0", "b0"):
            trial = self.trial()
            results = list(trial.overflows(3, (parameter, 0, math.inf)))
            if len(results) < 3:
                return
            fell[parameter] = [r.after < r.before for r in results]
            if self.backs_off and results[0].corrupted:
                expected = f"step skipped: {parameter}.grad has an inf"
                yield trial.differs("skip", "AMP208", expected, "step taken")
                return
            if not any(fell[parameter]) and any(all(f) for f in fell.values()):
                expected = f"an overflow in either of two optimizers lowers the scale; it is in {parameter}.grad"
                yield trial.differs("backoff", "AMP208", expected, f"scale {trial.scale!r} after {len(results)} overflows")
                return

    def load(self) -> Iterator[Discrepancy]:
        """Loading a state brings its scale back. Only a load without any effect is reported: the rest may be a choice."""
        trial = self.trial()
        session = trial.session
        if not all(callable(getattr(session.scaler, name, None)) for name in ("state_dict", "load_state_dict")):
            return
        try:
            trial.iterate()
            saved = trial.scale
            session.run("import copy", "state = copy.deepcopy(scaler.state_dict())")
            if not session.value("state") or not any(r.after < saved for r in trial.overflows(3)):
                return
            lowered = trial.scale
            session.run("scaler.load_state_dict(state)")
            loaded = session.effective_scale()
        except Exception:
            return
        if loaded == lowered:
            expected = f"scale {saved!r} after the state with that scale is loaded"
            yield trial.differs("load", "AMP208", expected, f"scale {loaded!r}, as before loading")

    def endless(self) -> Iterator[Discrepancy]:
        """Gradients of zero never overflow: growth has to stop before the scale is inf."""
        trial = self.trial()
        start = trial.scale
        for count in range(ENDLESS):
            try:
                result = trial.iterate(slope=0.0)
            except Exception:
                return
            if not math.isfinite(result.after) or result.after <= 0.0:
                seen = f"scale {result.after!r} after {count + 1} updates without overflow"
                yield trial.differs("bounds", "AMP205", "growth stops while the scale is finite", seen)
                return
            if count >= CLEAN and result.after <= start:
                return


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-12)


def _all_close(values: list[float], expected: float) -> bool:
    return all(_close(value, expected) for value in values)


def _numbers(scaler: Any) -> dict[str, Any]:
    """The numbers and tensors in a scaler's own attributes, tensors cloned."""
    found: dict[str, Any] = {}
    for name, value in getattr(scaler, "__dict__", {}).items():
        if isinstance(value, (bool, int, float, str)) or value is None:
            found[name] = value
        elif callable(getattr(value, "detach", None)) and callable(getattr(value, "clone", None)):
            found[name] = value.detach().clone()
    return found


def _put_back(scaler: Any, before: dict[str, Any]) -> list[str]:
    """Restore what differs from `before`, and name it."""
    changed = []
    for name, old in before.items():
        now = scaler.__dict__.get(name)
        if callable(getattr(old, "clone", None)):
            # NaN differs from itself, so tensors are compared by what they print.
            if str(now) != str(old):
                changed.append(name)
                now.detach().copy_(old)
        elif now != old:
            changed.append(name)
            setattr(scaler, name, old)
    return changed


def _no_copy(scaler: Any) -> str:
    """Why a copy of the scaler would not be one of its own; empty where it is."""
    for name, value in getattr(scaler, "__dict__", {}).items():
        # A function is not copied, and what it closes over is shared.
        if isinstance(value, (types.FunctionType, functools.partial)):
            return f"the scaler cannot be copied: its {name} is a function of its own"
    try:
        other = copy.deepcopy(scaler)
    # Copying runs the user's code, which may raise anything.
    except Exception as error:
        return f"the scaler cannot be copied: {type(error).__name__}: {error}"
    return "the scaler cannot be copied: its copy is itself" if other is scaler else ""


def probe(scaler: Any, usage: Usage, *, capabilities: Mapping[str, Any] | None = None, device: str = "cpu") -> Discrepancies:
    """Try copies of `scaler` on toy parameters.

    Args:
        scaler: a scaler between two iterations; it is copied and left as it is. No recorder may be watching meanwhile.
        usage: how the natural run uses it.
        capabilities: declared numbers, such as growth_interval or hysteresis; they come before attributes.
        device: device type the toy parameters live on.

    Returns:
        The first contradiction, if there is one: what comes after it may follow from it. `not_run` says why nothing
        could be tried.
    """
    found = Discrepancies()
    methods = all(callable(getattr(scaler, name, None)) for name in ("scale", "step"))
    if usage.unknown or not methods or usage.optimizers > 2:
        found.not_run = usage.unknown or ("it steps more than two optimizers" if methods else "it has no scale() and step()")
        return found
    if reason := _no_copy(scaler):
        found.not_run = reason
        return found
    with quiet_torch(device):
        try:
            found += itertools.islice(_Prober(scaler, usage, capabilities or {}, device).run(), 1)
        except _NotRun as reason:
            found.not_run = str(reason)
    return found
