"""Whatever a run does, torch and the process are as they were before it: after success, failure, an interrupt, and when nested."""

from __future__ import annotations

import random
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

import ampcheck
from ampcheck import _compat
from ampcheck.policy import HELD, Policy, world
from ampcheck.scenarios.drive import drive
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.patches import PatchSet

PATCHED: list[tuple[Any, str]] = [
    *((torch.amp.GradScaler, n) for n in ("__init__", "scale", "unscale_", "step", "update", "get_scale", "load_state_dict")),
    (torch.amp.GradScaler, "set_growth_interval"),
    *((torch.amp.autocast_mode.autocast, n) for n in ("__init__", "__enter__", "__exit__")),
    (torch.amp.autocast_mode, "_cast"),
    (torch.autograd, "_engine_run_backward"),
    (torch.optim.Optimizer, "__init__"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.nn.Module, "zero_grad"),
]


class Subclass(torch.amp.GradScaler):
    """A subclass that overrides one method, which is patched too."""

    def update(self, new_scale: Any = None) -> None:
        super().update(new_scale)


PATCHED += [(Subclass, "update"), (Subclass, "step")]


def state() -> dict[str, Any]:
    """Everything global that a run touches."""
    found: dict[str, Any] = {f"{owner.__name__}.{name}": vars(owner).get(name, "inherited") for owner, name in PATCHED}
    found["pre hooks"] = list(torch_optimizer._global_optimizer_pre_hooks)
    found["post hooks"] = list(torch_optimizer._global_optimizer_post_hooks)
    for device in ("cpu", "cuda"):
        found[f"autocast {device}"] = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
    found["autocast cache"] = torch.is_autocast_cache_enabled()
    found["nesting"] = _compat.autocast_nesting()
    found["deterministic"] = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )
    found["cudnn"] = (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32)
    found["tf32"] = torch.backends.cuda.matmul.allow_tf32
    found["torch rng"] = torch.get_rng_state().tolist()
    found["python rng"] = random.getstate()
    found["threads"] = torch.get_num_threads()
    found["warnings"] = list(warnings.filters)
    found["alarm"] = (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0)
    found["grad mode"] = torch.is_grad_enabled()
    found["function modes"] = torch._C._len_torch_function_stack()
    return found


def contract(fail: Callable[[], None] = lambda: None) -> Callable[[], Callable[[], None]]:
    """A step that leaves autocast on, moves every generator and then calls `fail`."""

    def build() -> Callable[[], None]:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = Subclass("cpu", init_scale=4.0)

        def step() -> None:
            random.random()
            optimizer.zero_grad()
            torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
            loss = model(torch.randn(2, 4)).float().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            fail()

        return step

    return build


def interrupt() -> None:
    raise KeyboardInterrupt


def refuse() -> None:
    raise ValueError("the step fails")


POLICIES = [
    Policy(),
    Policy("float32", scale=2.0**10, growth_interval=HELD),
    Policy("float16", scale=1.0, growth_interval=1).widened(),
]


@pytest.mark.parametrize("policy", POLICIES, ids=["natural", "scaled", "widened"])
@pytest.mark.parametrize("fail", [lambda: None, refuse, interrupt], ids=["success", "failure", "interrupt"])
def test_a_run_restores_everything(policy: Policy, fail: Callable[[], None]) -> None:
    before = state()
    try:
        drive(contract(fail), policy, name="contract", calls=2, timeout=60, inspect_graph=True)
    except KeyboardInterrupt:
        assert fail is interrupt
    assert state() == before


@pytest.mark.parametrize("site", range(len(PATCHED)), ids=lambda i: f"{PATCHED[i][0].__name__}.{PATCHED[i][1]}")
def test_the_test_above_would_see_each_site(site: int) -> None:
    owner, name = PATCHED[site]
    before = state()
    with PatchSet() as patches:
        patches.set(owner, name, object())
        assert state() != before
    assert state() == before


def test_a_whole_judgement_restores_everything() -> None:
    before = state()
    ampcheck.check(contract(), device="cpu")
    assert state() == before


def test_nested_recording_restores_everything() -> None:
    before = state()
    with ampcheck.trace() as outer, ampcheck.policy("float32"), ampcheck.trace() as inner:
        contract()()()
    after = state()
    for generator in ("torch rng", "python rng"):  # recording is not allowed to touch the user's random numbers
        assert after.pop(generator) != before.pop(generator)
    assert after == before
    assert [e.kind for e in outer.events] == [e.kind for e in inner.events]
    assert "optimizer_step" in {e.kind for e in inner.events}


def test_a_run_inside_a_run_is_its_own() -> None:
    before = state()
    inner = []

    def build() -> Callable[[], None]:
        step = contract()()

        def nested() -> None:
            step()
            inner.append(drive(contract(), Policy(), name="inner", calls=1).trace)

        return nested

    run = drive(build, Policy(), name="outer", calls=1)
    assert state() == before
    assert run.trace.raised is None and inner[0].raised is None
    assert len(inner[0].steps) == 1


def test_entering_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from ampcheck.trace.recorder import Recorder

    before = state()
    monkeypatch.setattr(Recorder, "_patch_optimizer", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        drive(contract(), Policy(), name="contract", calls=1)
    monkeypatch.undo()
    assert state() == before


def test_patches_that_cannot_be_restored_do_not_stop_the_others() -> None:
    class Stubborn:
        def __setattr__(self, name: str, value: object) -> None:
            if value == 1:
                raise AttributeError("no way back")
            object.__setattr__(self, name, value)

    class Plain:
        value = 1

    stubborn, plain = Stubborn(), Plain()
    object.__setattr__(stubborn, "value", 1)
    patches = PatchSet()
    patches.set(plain, "value", 2)
    patches.set(stubborn, "value", 2)
    with pytest.raises(AttributeError, match="no way back"):
        patches.close()
    assert plain.value == 1 and "value" not in vars(plain)


def test_an_outer_timer_goes_on_after_a_scenario() -> None:
    rang: list[int] = []
    old = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    signal.setitimer(signal.ITIMER_REAL, 3600)
    try:
        drive(contract(), Policy(), name="contract", calls=1, timeout=60)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 3600
        assert signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert not rang


def test_world_alone_restores() -> None:
    before = state()
    with pytest.raises(RuntimeError), world(Policy("bfloat16", scale=8.0)):
        torch.set_autocast_enabled("cpu", True)
        torch.autocast_increment_nesting()
        raise RuntimeError
    assert state() == before


def test_spec_counts_what_it_runs() -> None:
    spec = Spec(contract(), "contract")
    spec.run("natural", Policy(), calls=2)
    spec.run("natural", Policy(), calls=1)
    assert (spec.costs["natural"].builds, spec.costs["natural"].calls) == (2, 3)
