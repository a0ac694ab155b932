"""`ampcheck.scaler_contract` against torch's scaler, and against mutants of it that it must catch with a script that runs."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch

import ampcheck
from ampcheck.errors import UsageError
from ampcheck.scaler.measure import resolve


def finite(gradients: list[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(g).all()) for g in gradients)


class Plain:
    """A correct scaler of our own, in pieces that each mutant replaces one of."""

    def __init__(self) -> None:
        self.value, self.growth_factor, self.backoff_factor = 4.0, 2.0, 0.5
        self.growth_interval, self.tracker = 3, 0
        self.unscaled: set[int] = set()
        self.overflowed: dict[int, bool] = {}

    def get_scale(self) -> float:
        return self.value

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.value

    def gradients(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        return [g._values() if g.is_sparse else g for g in grads]

    def judge(self, gradients: list[torch.Tensor]) -> bool:
        return not finite(gradients)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = self.gradients(optimizer)
        self.overflowed[id(optimizer)] = self.judge(gradients)
        for gradient in gradients:
            gradient.div_(self.value)
        self.unscaled.add(id(optimizer))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) not in self.unscaled:
            self.unscale_(optimizer)
        if not self.overflowed[id(optimizer)]:
            optimizer.step()

    def update(self) -> None:
        if any(self.overflowed.values()):
            self.on_overflow()
        else:
            self.on_success()
        self.overflowed.clear()
        self.unscaled.clear()

    def on_overflow(self) -> None:
        self.value, self.tracker = self.value * self.backoff_factor, 0

    def on_success(self) -> None:
        self.tracker += 1
        if self.tracker == self.growth_interval:
            self.grow()
            self.tracker = 0

    def grow(self) -> None:
        self.value = min(self.value * self.growth_factor, 2.0**24)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "tracker": self.tracker}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.tracker = state["value"], state["tracker"]


class NoBackoff(Plain):
    def on_overflow(self) -> None:
        self.tracker = 0


class GrowsOneStepEarly(Plain):
    def on_success(self) -> None:
        self.tracker += 1
        if self.tracker == self.growth_interval - 1:
            self.grow()
            self.tracker = 0


class GrowsOnOverflow(Plain):
    def on_overflow(self) -> None:
        self.value, self.tracker = self.value * self.growth_factor, 0


class KeepsTrackerOnOverflow(Plain):
    def on_overflow(self) -> None:
        self.value *= self.backoff_factor


class LosesTrackerInStateDict(Plain):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class StepsOnOverflow(Plain):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) not in self.unscaled:
            self.unscale_(optimizer)
        optimizer.step()


class UnscalesTwice(Plain):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.unscale_(optimizer)
        if not self.overflowed[id(optimizer)]:
            optimizer.step()


class SwapsFactors(Plain):
    def on_overflow(self) -> None:
        self.value, self.tracker = self.value * self.growth_factor, 0

    def grow(self) -> None:
        self.value *= self.backoff_factor


class LeavesSparseScaled(Plain):
    def gradients(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        return [g for g in grads if not g.is_sparse]


class JudgesHalfNorm(Plain):
    def judge(self, gradients: list[torch.Tensor]) -> bool:
        half = torch.cat([g.flatten() for g in gradients]).half()
        return not bool(torch.isfinite((half * half).sum()))


class GrowsWithoutCap(Plain):
    def grow(self) -> None:
        self.value *= self.growth_factor


class LooksAtFirstParameterOnly(Plain):
    def judge(self, gradients: list[torch.Tensor]) -> bool:
        return not finite(gradients[:1])


class OverlooksNaN(Plain):
    def judge(self, gradients: list[torch.Tensor]) -> bool:
        return any(bool(torch.isinf(g).any()) for g in gradients)


class RemembersLastOptimizerOnly(Plain):
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        self.overflowed = {id(optimizer): self.overflowed[id(optimizer)]}

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) not in self.unscaled:
            self.unscale_(optimizer)
        if not self.overflowed.get(id(optimizer), False):
            optimizer.step()


class BacksOffOnceForEachOptimizer(Plain):
    def on_overflow(self) -> None:
        self.value, self.tracker = self.value * self.backoff_factor ** sum(self.overflowed.values()), 0


class RaisesOnOverflow(Plain):
    def on_overflow(self) -> None:
        raise FloatingPointError("the loss scale is too high")


MUTANTS = [
    (NoBackoff, "scale 2.0 after an overflow"),
    (GrowsOneStepEarly, "scale 4.0 after a clean update"),
    (GrowsOnOverflow, "scale 2.0 after an overflow"),
    (KeepsTrackerOnOverflow, "after a clean update"),
    (LosesTrackerInStateDict, "after a clean update"),
    (StepsOnOverflow, "step skipped, a gradient is not finite"),
    (UnscalesTwice, "step taken with the unscaled gradient"),
    (SwapsFactors, "scale 2.0 after an overflow"),
    (LeavesSparseScaled, "table"),
    (JudgesHalfNorm, "step taken with the unscaled gradient"),
    (GrowsWithoutCap, f"scale {2.0**127!r} after a clean update"),
    (LooksAtFirstParameterOnly, "step skipped, a gradient is not finite"),
    (OverlooksNaN, "step skipped, a gradient is not finite"),
    (RemembersLastOptimizerOnly, "after an overflow"),
    (BacksOffOnceForEachOptimizer, "scale 2.0 after an overflow"),
    (RaisesOnOverflow, "no exception from scaler.update()"),
]


class UnscalesByHalf(torch.amp.GradScaler):
    """A mutant of torch's own class, to see that the probing of its private parts is not in the way."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)
        return super().step(optimizer, *args, **kwargs)


TestTorch = ampcheck.scaler_contract(lambda: torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3))
TestTorchDefaults = ampcheck.scaler_contract(lambda: torch.amp.GradScaler("cpu"))
TestTorchUnevenFactors = ampcheck.scaler_contract(
    lambda: torch.amp.GradScaler("cpu", init_scale=10.0, growth_factor=1.5, backoff_factor=0.7, growth_interval=1)
)
TestPlain = ampcheck.scaler_contract(Plain, max_scale=2.0**24)
TestPlainMeasured = ampcheck.scaler_contract(Plain)


@pytest.mark.parametrize(("mutant", "expected"), MUTANTS, ids=[m.__name__ for m, _ in MUTANTS])
def test_mutant_is_caught_with_a_script_that_runs(mutant: type[Plain], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ampcheck.scaler_contract(mutant).disagreement()
    assert found is not None
    assert expected in found.expected
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises((AssertionError, FloatingPointError)):
        exec("\n".join(found.script), {})


@pytest.mark.parametrize("mutant", [NoBackoff, GrowsOneStepEarly, StepsOnOverflow, UnscalesTwice, LosesTrackerInStateDict])
def test_random_search_alone_finds_and_shrinks(mutant: type[Plain]) -> None:
    """Without the textbook sequences, and as small as they are."""
    contract = ampcheck.scaler_contract(mutant, max_scale=2.0**24)
    contract.capabilities = resolve(mutant, contract.declared)
    found, short = contract.search(), contract.disagreement()
    assert found is not None
    assert short is not None
    assert len(found.script) <= len(short.script)


def test_shrinks_to_one_iteration() -> None:
    found = ampcheck.scaler_contract(NoBackoff).disagreement()
    assert found is not None
    body = found.script[found.script.index("optimizer_a.zero_grad()") :]
    assert body[:5] == [
        "optimizer_a.zero_grad()",
        "scaler.scale(0.5 * (a0.sum() + a1.sum())).backward()",
        'a0.grad[0] = float("inf")',
        "scaler.step(optimizer_a)",
        "scaler.update()",
    ]
    assert (found.expected, found.seen) == ("scale 2.0 after an overflow (growth tracker 0)", "scale 4.0")


def test_many_iterations_are_written_as_a_loop() -> None:
    found = ampcheck.scaler_contract(GrowsWithoutCap).disagreement()
    assert found is not None
    assert any(line.startswith("for _ in range(") for line in found.script)
    assert len(found.script) < 40
    assert math.isinf(float(found.seen.removeprefix("scale "))) or float(found.seen.removeprefix("scale ")) > 2.0**127


def test_subclass_of_torch_is_caught() -> None:
    with pytest.raises(AssertionError, match="step taken with the unscaled gradient") as caught:
        ampcheck.scaler_contract(lambda: UnscalesByHalf("cpu", init_scale=4.0, growth_interval=3)).check()
    assert "return UnscalesByHalf('cpu', init_scale=4.0, growth_interval=3)" in str(caught.value)


def test_the_same_failure_every_time() -> None:
    contract = ampcheck.scaler_contract(KeepsTrackerOnOverflow)
    one, other = contract.disagreement(), contract.disagreement()
    assert one is not None
    assert other is not None
    assert one.script == other.script


class Static(Plain):
    def update(self) -> None:
        self.overflowed.clear()
        self.unscaled.clear()


class Floored(Plain):
    floor = 2.0

    def on_overflow(self) -> None:
        self.value, self.tracker = max(self.value * self.backoff_factor, self.floor), 0


class Patient(Plain):
    """Backs off from the second overflow on; growth refills the patience."""

    patience = 2

    def on_overflow(self) -> None:
        self.tracker = 0
        self.patience -= 1
        if self.patience <= 0:
            self.value *= self.backoff_factor

    def grow(self) -> None:
        super().grow()
        self.patience = 2

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "patience": self.patience}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.patience = state["patience"]


class PatientAfterCleanSteps(Patient):
    def on_success(self) -> None:
        self.patience = 2
        super().on_success()


class UpdatesInStep(Plain):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        super().step(optimizer)
        super().update()

    def update(self) -> None:
        pass


class Minimal:
    """Only what a scaler must have."""

    def __init__(self) -> None:
        self.loss_scale, self.good = 16.0, 0

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.loss_scale

    def step(self, optimizer: torch.optim.Optimizer, max_norm: float) -> bool:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not finite(gradients):
            self.loss_scale, self.good = self.loss_scale / 2, 0
            return False
        for gradient in gradients:
            gradient.div_(self.loss_scale)
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], max_norm)
        optimizer.step()
        self.good += 1
        if self.good % 4 == 0:
            self.loss_scale = min(self.loss_scale * 2, 2.0**20)
        return True


CAPABLE: list[tuple[Any, dict[str, Any]]] = [
    (Static, {"static": True}),
    (Floored, {"min_scale": 2.0}),
    (Floored, {}),
    (Patient, {"hysteresis": 2}),
    (PatientAfterCleanSteps, {"hysteresis": 2, "refill": "clean"}),
    (UpdatesInStep, {}),
    (Minimal, {"step_args": (1e9,), "sparse": False}),
]


@pytest.mark.parametrize(("scaler", "capabilities"), CAPABLE, ids=[f"{s.__name__}-{'-'.join(c)}" for s, c in CAPABLE])
def test_capable_scaler_passes(scaler: Any, capabilities: dict[str, Any]) -> None:
    ampcheck.scaler_contract(scaler, **capabilities).check()


@pytest.mark.parametrize(
    ("scaler", "capabilities"),
    [
        (Static, {}),
        (Patient, {}),
        (Patient, {"hysteresis": 3}),
        (PatientAfterCleanSteps, {"hysteresis": 2}),
        (Floored, {"min_scale": 1.0}),
    ],
)
def test_what_is_not_declared_or_declared_wrongly_is_a_difference(scaler: Any, capabilities: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="AMP208"):
        ampcheck.scaler_contract(scaler, **capabilities).check()


def test_capabilities_are_checked_when_declared() -> None:
    with pytest.raises(UsageError, match=r"'hysterisis'.*hysteresis"):
        ampcheck.scaler_contract(Plain, hysterisis=2)
    with pytest.raises(UsageError, match=r"backoff_factor=2\.0 makes no sense"):
        ampcheck.scaler_contract(Plain, backoff_factor=2.0)
    with pytest.raises(UsageError, match="no loss scaler: it has no method 'scale'"):
        ampcheck.scaler_contract(dict).check()


def test_torch_is_left_as_it_was() -> None:
    torch.manual_seed(7)
    before = (torch.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype())
    ampcheck.scaler_contract(Plain).check()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (torch.get_num_threads(), torch.get_default_dtype())


def test_under_plain_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_mine=textwrap.dedent(
            """
            import torch
            import ampcheck

            class Mine(torch.amp.GradScaler):
                def update(self, new_scale=None):
                    scale = self._scale.clone()
                    super().update(new_scale)
                    if new_scale is None and self._scale < scale:
                        self._scale.copy_(scale)

            TestGood = ampcheck.scaler_contract(lambda: torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3))
            TestMine = ampcheck.scaler_contract(lambda: Mine("cpu", init_scale=4.0, growth_interval=3))
            """
        )
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-W", "error")
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert "AMP208 scaler-model" in text
    result.stdout.fnmatch_lines(["*expected: scale 2.0 after an overflow (growth tracker 0)", "*seen:     scale 4.0"])
    # No frame of ampcheck's or Hypothesis's inside is shown, and the script stands at the left margin.
    assert "hypothesis" not in text.split("FAILURES")[1]
    assert "referee.py" not in text
    script = text[text.index("import torch\nimport sys;") : text.index("\n=", text.index("import torch\nimport sys;"))]
    child = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, cwd=pytester.path, check=False)
    assert "AssertionError: scale is 4.0, expected 2.0" in child.stderr
