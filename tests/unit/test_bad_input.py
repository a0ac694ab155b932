"""Contracts that cannot be judged say why, in one finding or one reason, and nothing passes silently."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ampcheck
from ampcheck.findings import Report
from ampcheck.scenarios.natural import Patience

MODEL = torch.nn.Linear(4, 4)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


def run(make_step: Callable[[], Any], **options: Any) -> Report:
    return ampcheck.check(make_step, device="cpu", name="contract", **options)


def only_finding(report: Report) -> str:
    assert [f.id for f in report.findings] == ["AMP111"]
    assert {v.outcome for v in report.verdicts if v.check != "AMP111"} <= {"not-run", "passed"}
    return report.findings[0].seen


def raises() -> Callable[[], None]:
    raise RuntimeError("cannot reach the data")


def test_a_contract_that_raises_while_building() -> None:
    report = run(raises)
    assert only_finding(report) == "while the contract was built: RuntimeError: cannot reach the data"
    assert report.findings[0].location is not None and report.findings[0].location.file == __file__
    assert {v.outcome for v in report.verdicts if v.check != "AMP111"} == {"not-run"}
    assert "an earlier one left state in the process" in report.findings[0].fix
    assert "earlier" not in run(lambda: None).findings[0].fix  # that is our own word on it


@pytest.mark.parametrize(("built", "message"), [(None, "returned nothing"), (3, "returned int, which cannot be called")])
def test_a_contract_that_returns_no_step(built: object, message: str) -> None:
    assert message in only_finding(run(lambda: built))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": 0}, "calls=...) must be a whole number from 1"),
        ({"state_dict": dict}, "declare state_dict= and load_state_dict= together"),
        ({"scaler": object()}, "must have scale() and step()"),
    ],
)
def test_a_training_that_cannot_be(options: dict[str, Any], message: str) -> None:
    assert message in only_finding(run(lambda: ampcheck.Training(lambda: None, **options)))


def test_a_step_that_takes_arguments() -> None:
    assert "needs input; bind them inside the contract" in only_finding(run(lambda: MODEL.forward))


def test_a_step_that_raises() -> None:
    def build() -> Callable[[], None]:
        def step() -> None:
            torch.ones(2, 3) @ torch.ones(2, 3)

        return step

    assert only_finding(run(build)).startswith("in call 1: RuntimeError: mat1 and mat2 shapes")


def test_a_step_that_hangs() -> None:
    def build() -> Callable[[], None]:
        def step() -> None:
            while True:
                time.monotonic()

        return step

    assert "took longer than 1 s" in only_finding(run(build, timeout=1))


def test_a_slow_step_is_judged_by_the_calls_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(Patience.__init__, "__defaults__", (lambda: clock[0],))

    def build() -> Callable[[], float]:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> float:
            clock[0] += 80
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.ones(2, 4)).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    report = run(build)
    assert [f for f in report.findings if f.level == "error"] == []
    (note,) = [note for note in report.contracts[0].facts["notes"] if "judged by" in note]
    assert note.startswith("judged by 3 of 6 calls of the step, which take up to 80 s: no more fit in 300 s")
    assert all("judged by" not in note for note in run(build, timeout=3000).contracts[0].facts["notes"])


def test_a_contract_that_shares_its_model() -> None:
    def build() -> Callable[[], None]:
        def step() -> None:
            OPTIMIZER.zero_grad()
            MODEL(torch.ones(2, 4)).sum().backward()
            OPTIMIZER.step()

        return step

    assert "shares state between builds: weight was there before" in only_finding(run(build))


def no_step() -> Callable[[], float]:
    return lambda: 1.0


def no_gradient() -> Callable[[], None]:
    optimizer = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        optimizer.step()

    return step


@pytest.mark.parametrize("build", [no_step, no_gradient])
def test_a_step_without_an_optimizer_step_or_gradient_is_not_judged(build: Callable[[], Any]) -> None:
    report = run(build)
    assert not report.findings and not report.contracts[0].judged
    reasons = {v.reason for v in report.verdicts if v.check in ("AMP101", "AMP103", "AMP109", "AMP201", "AMP502")}
    assert len(reasons) == 1 and "no optimizer used a gradient in 6 calls" in reasons.pop()


class Foreign:
    """Not derived from torch's optimizer."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.param_groups = [{"params": parameters, "lr": 0.1}]

    def step(self) -> None:
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p -= 0.1 * p.grad

    def zero_grad(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.grad = None


@pytest.mark.parametrize("clipped", [False, True])
def test_an_optimizer_that_is_not_torchs_is_judged_once_it_is_named(clipped: bool) -> None:
    def build() -> ampcheck.Training:
        model = torch.nn.Linear(8, 8)
        optimizer = Foreign(list(model.parameters()))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        x = torch.randn(8, 8)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            if clipped:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)  # type: ignore[arg-type]
            scaler.update()

        return ampcheck.Training(step, optimizers=optimizer)

    found = {v.check: v.outcome for v in run(build).verdicts}
    assert found["AMP102"] == ("failed" if clipped else "passed")
    assert clipped or found["AMP201"] == "passed"


def test_an_error_of_our_own_does_not_block_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from ampcheck.registry import CHECKS, load_checks

    def broken(evidence: Any) -> Any:
        raise KeyError("ours")
        yield

    load_checks()
    monkeypatch.setitem(CHECKS, "AMP311", dataclasses.replace(CHECKS["AMP311"], function=broken))
    found = {v.check: v for v in run(no_gradient).verdicts}
    assert found["AMP311"].outcome == "inconclusive" and "KeyError" in found["AMP311"].reason


def test_check_hands_a_contract_the_device_type_that_it_asks_for() -> None:
    seen = []

    @ampcheck.contract
    def net(amp_device: str) -> Any:
        seen.append(amp_device)
        return raises

    assert "cannot reach the data" in only_finding(ampcheck.check(net, device="cpu"))
    assert set(seen) == {"cpu"}


def test_check_refuses_a_contract_that_needs_fixtures() -> None:
    with pytest.raises(ampcheck.UsageError, match="needs width, which only pytest's fixtures can give"):
        ampcheck.check(lambda width: None, device="cpu")
