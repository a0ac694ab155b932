"""A scaler and the reference model side by side: each action is done to both, and the first difference ends the match."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ampcheck.scaler.capabilities import Capabilities
from ampcheck.scaler.session import Session, literal

__all__ = ["Disagreement", "Referee"]

#: Scales are float32 in torch and Python floats elsewhere; factors such as 1.5 round differently there.
TOLERANCE = 1e-4


class Disagreement(Exception):
    """The scaler and the reference model differ: what was expected and seen, and the script that shows it."""

    def __init__(self, expected: str, seen: str, script: Sequence[str]) -> None:
        super().__init__(f"expected: {expected}\nseen:     {seen}")
        self.expected, self.seen, self.script = expected, seen, list(script)


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


class Referee:
    """Drives one scaler and its model through training iterations.

    Args:
        factory: builds the scaler.
        build: source lines that define `build_scaler`, for the script.
        capabilities: what the scaler is held to.
        device: where the toy parameters live.
    """

    def __init__(
        self, factory: Callable[[], Any], build: Sequence[str], capabilities: Capabilities, device: str = "cpu"
    ) -> None:
        self.can = capabilities
        lines = [*build, "scaler = build_scaler()"]
        arguments: dict[str, Any] = {"step_args": capabilities.step_args, "step_kwargs": capabilities.step_kwargs}
        self.session = Session(factory(), lines, device=device, **arguments)
        self.session.names["build_scaler"] = factory
        self.model = capabilities.model(self.session.scale())
        # torch sets up its scale at the first use; before that update(new_scale) is a misuse.
        self.used = False
        self.gradients: dict[str, list[float]] = {}
        self.values: dict[str, list[float]] = {}

    # What the state of the iteration allows ---------------------------------------------------------------------

    def optimizers(self) -> list[str]:
        """Optimizers that may take part in the present iteration."""
        every = ["a", "b", "table"] if self.can.sparse else ["a", "b"]
        active = [o for o in every if o in self.model.stepped or o in self.model.found_inf or self.pending(o)]
        return every if len(active) < self.can.optimizers else active

    def pending(self, optimizer: str) -> bool:
        return self.session.parameters(optimizer)[0] in self.gradients

    def may_backward(self) -> list[str]:
        return [o for o in self.optimizers() if o not in self.model.stepped and o not in self.model.found_inf]

    def may_step(self) -> list[str]:
        return [o for o in self.optimizers() if self.pending(o) and o not in self.model.stepped]

    def may_unscale(self) -> list[str]:
        return [o for o in self.may_step() if self.can.unscale and o not in self.model.found_inf]

    def may_plant(self) -> list[str]:
        """Optimizers whose gradients are as backward left them, which is where an overflow shows."""
        return [o for o in self.may_step() if o not in self.model.found_inf]

    def may_fill(self) -> list[str]:
        return [o for o in self.may_plant() if o != "table"]

    def may_clip(self) -> list[str]:
        return [o for o in self.may_step() if o in self.model.found_inf and o != "table"]

    def may_update(self) -> bool:
        return self.can.update and bool(self.model.stepped) and not self.may_step()

    def between_iterations(self) -> bool:
        return not self.model.found_inf and not self.gradients

    # Actions ----------------------------------------------------------------------------------------------------

    def backward(self, optimizer: str, slope: float) -> None:
        session = self.session
        session.prepare(optimizer)
        fresh = not self.pending(optimizer)
        self.used = True
        self._do(*session.backward_lines(optimizer, slope, fresh=fresh))
        for name in session.parameters(optimizer):
            new = [slope, 0.0, 2 * slope] if name == "table" else [slope] * session.elements(name)
            old = [0.0] * len(new) if fresh else self.gradients[name]
            self.gradients[name] = [o + n * self.model.scale for o, n in zip(old, new, strict=True)]
            self.values.setdefault(name, [0.0] * len(new))
            self._same_gradient(name, "after backward the gradient is scaled")

    def plant(self, optimizer: str, parameter: int, element: int, value: float) -> None:
        """Write inf, -inf or NaN into one element, as an overflow in backward does."""
        names = self.session.parameters(optimizer)
        name = names[parameter % len(names)]
        # Two stored values of the table are sure to be there, for rows 0 and 2: accumulation joins equal rows.
        element %= 2 if name == "table" else self.session.elements(name)
        self._do(self.session.plant_line(name, element, value))
        self.gradients[name][2 * element if name == "table" else element] = value

    def fill(self, optimizer: str, value: float) -> None:
        """Write a large finite value into every element of the first vector."""
        name = self.session.parameters(optimizer)[0]
        self._do(f"{name}.grad.fill_({value!r})")
        self.gradients[name] = [value] * self.session.elements(name)

    def unscale(self, optimizer: str) -> None:
        self._do(f"scaler.unscale_(optimizer_{optimizer})")
        self._split(optimizer, self.model.unscale(optimizer, self._flat(optimizer)))
        for name in self.session.parameters(optimizer):
            self._same_gradient(name, "unscale_ divides by the scale, once")

    def clip(self, optimizer: str, max_norm: float) -> None:
        names = self.session.parameters(optimizer)
        self._do(f"torch.nn.utils.clip_grad_norm_([{', '.join(names)}], {max_norm!r})")
        flat = self._flat(optimizer)
        norm = math.sqrt(sum(gradient * gradient for gradient in flat))
        factor = min(1.0, max_norm / (norm + 1e-6))
        self._split(optimizer, [gradient * factor for gradient in flat])

    def step(self, optimizer: str) -> None:
        flat = self._flat(optimizer)
        overflow = not all(map(math.isfinite, flat)) or self.model.found_inf.get(optimizer, False)
        self._do(self.session.step_line(optimizer))
        applied = self.model.step(optimizer, flat)
        before = dict(self.values)
        start = 0
        for name in self.session.parameters(optimizer):
            size = len(self.values[name])
            if applied is not None:
                part = applied[start : start + size]
                self.values[name] = [value - gradient for value, gradient in zip(self.values[name], part, strict=True)]
            start += size
            del self.gradients[name]
        for name in self.session.parameters(optimizer):
            self._same_parameter(name, before[name], skipped=applied is None)
        if not self.can.update:
            self.model.update()
            self._same_scale("an overflow" if overflow else "a clean update")

    def update(self) -> None:
        overflow = any(self.model.found_inf.values())
        self._do("scaler.update()")
        self.model.update()
        self._same_scale("an overflow" if overflow else "a clean update")

    def update_to(self, scale: float) -> None:
        self._do(f"scaler.update({scale!r})")
        self.model.update(scale)
        self._same_scale("update(new_scale)")

    def save_and_load(self) -> None:
        self._do("state = scaler.state_dict()", "scaler = build_scaler()", "scaler.load_state_dict(state)")
        self.used = False
        self._same_scale("loading its own state into a new scaler")

    def iteration(self, optimizer: str, slope: float, plant: tuple[int, int, float] | None = None) -> None:
        """One whole iteration, as a block that the script folds into a loop. A slope of 0 gives gradients of 0."""
        with self.session.block():
            self.backward(optimizer, slope)
            if plant is not None:
                self.plant(optimizer, *plant)
            self.step(optimizer)
            if self.can.update:
                self.update()

    # Comparing --------------------------------------------------------------------------------------------------

    def _do(self, *lines: str) -> None:
        try:
            self.session.run(*lines)
        # Whatever the scaler raises on a legal sequence is a difference: the model does not raise.
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
            raise Disagreement(f"no exception from {lines[-1]}", seen, self.session.script()) from error

    def _flat(self, optimizer: str) -> list[float]:
        return [value for name in self.session.parameters(optimizer) for value in self.gradients[name]]

    def _split(self, optimizer: str, flat: list[float]) -> None:
        for name in self.session.parameters(optimizer):
            size = len(self.gradients[name])
            self.gradients[name], flat = flat[:size], flat[size:]

    def _fail(self, expected: str, seen: str, *ending: str) -> None:
        raise Disagreement(expected, seen, self.session.script("", f"# expected: {expected}", f"# seen:     {seen}", *ending))

    def _same_gradient(self, name: str, rule: str) -> None:
        expected, seen = self.gradients[name], self.session.gradient(name)
        # Which kind of non-finite an inf becomes is nobody's contract.
        if all(not math.isfinite(e) or _close(e / self._unit, s / self._unit) for e, s in zip(expected, seen, strict=True)):
            return
        dense = ".to_dense().flatten()" if name == "table" else ""
        expectation = f"{name}.grad {expected} ({rule}, the scale is {self.model.scale!r})"
        self._fail(expectation, f"{name}.grad {seen}", *self._assertion(f"{name}.grad{dense}", expected))

    @property
    def _unit(self) -> float:
        return max(1.0, self.model.scale)

    def _same_parameter(self, name: str, before: list[float], *, skipped: bool) -> None:
        expected, seen = self.values[name], self.session.parameter(name)
        if all(_close(e, s) for e, s in zip(expected, seen, strict=True)):
            return
        if skipped:
            expectation = f"step skipped, a gradient is not finite: {name} stays {expected}"
            sight = f"step taken: {name} is {seen}"
        else:
            expectation = f"step taken with the unscaled gradient: {name} becomes {expected}"
            sight = f"{'step skipped: ' if seen == before else ''}{name} is {seen}"
        shape = ".flatten()" if name == "table" else ""
        self._fail(expectation, sight, *self._assertion(f"{name}.detach(){shape}", expected))

    def _same_scale(self, event: str) -> None:
        expected, seen = self.model.scale, self.session.scale()
        if math.isclose(expected, seen, rel_tol=TOLERANCE):
            return
        source = self.session.scale_source
        tracker = f"growth tracker {self.model.growth_tracker}"
        self._fail(
            f"scale {expected!r} after {event} ({tracker})",
            f"scale {seen!r}",
            f"scale = {source}",
            f'assert abs(scale - {expected!r}) <= {TOLERANCE} * {expected!r}, f"scale is {{scale}}, expected {expected!r}"',
        )

    def _assertion(self, tensor: str, expected: list[float]) -> list[str]:
        # Elements that overflowed are left out of the comparison.
        kept = [i for i, value in enumerate(expected) if math.isfinite(value)]
        source = tensor if len(kept) == len(expected) else f"{tensor}[{kept}]"
        values = ", ".join(literal(expected[i]) for i in kept)
        close = f"all(abs(s - e) <= {TOLERANCE} * max(1.0, abs(e)) for s, e in zip(seen, expected))"
        message = 'f"seen {seen}, expected {expected}"'
        return [f"seen = {source}.tolist()", f"expected = [{values}]", f"assert {close}, {message}"]
