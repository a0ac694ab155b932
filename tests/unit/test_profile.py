"""The profile of a contract: what is recorded of it for people and for the comparison of two runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ampcheck
from ampcheck import profile as module
from ampcheck.report.json import document
from ampcheck.scenarios.natural import natural
from ampcheck.scenarios.spec import Spec


class Net(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = torch.nn.Linear(8, 16), norm, torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.norm(self.fc1(x)).relu())


def training(
    clip: str = "after",
    micro: int = 1,
    norm: Callable[[], torch.nn.Module] = lambda: torch.nn.LayerNorm(16),
    scale: float = 2.0**10,
) -> Callable[[], object]:
    def build() -> object:
        torch.manual_seed(0)
        model = Net(norm())
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        x = torch.randn(16, 8)

        def step() -> torch.Tensor:
            for _ in range(micro):
                with torch.autocast("cpu", torch.float16):
                    loss = model(x).float().pow(2).mean() / micro
                scaler.scale(loss).backward()
            if clip == "before":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.unscale_(optimizer)
            if clip == "after":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if clip == "by hand":
                for p in model.parameters():
                    p.grad = p.grad.clamp(-1.0, 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss.detach()

        return step

    return build


def contract(build: Callable[[], object]) -> dict[str, Any]:
    report = ampcheck.check(build, device="cpu")
    [found] = document(report, Path(__file__).parent)["contracts"]
    return found


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return contract(training(micro=2))


def test_it_is_json_with_every_key(whole: dict[str, Any]) -> None:
    assert set(whole["profile"]) == {
        "scale", "gradients", "modules", "ops", "events", "places", "state", "layers", "first_nonfinite"
    }  # fmt: skip
    json.dumps(whole, allow_nan=False)
    assert whole["judged"]
    assert whole["settings"] == {"ignore": [], "select": None, "dtypes": None, "strict": [], "xfail": {}}
    assert 0.0 < whole["headroom"]["as-written"]["gradient"] < 1.0


def test_modules_have_their_dtypes_and_the_line_that_calls_them(whole: dict[str, Any]) -> None:
    rows = {m["module"]: m for m in whole["profile"]["modules"]}
    assert list(rows) == ["", "fc1", "norm", "fc2"]
    assert rows["fc1"] == {
        "module": "fc1", "kind": "Linear", "parameters": "float32", "forward": {"float16": 12}, "line": rows["fc2"]["line"]
    }  # fmt: skip
    file, _, line = rows["fc1"]["line"].rpartition(":")
    assert file == "test_profile.py"
    assert "self.fc2(self.norm" in Path(__file__).read_text("utf-8").splitlines()[int(line) - 1]
    assert rows[""]["parameters"] is None


def test_ops_are_added_up_by_place_and_dtype(whole: dict[str, Any]) -> None:
    ops = whole["profile"]["ops"]
    matmuls = [o for o in ops if o["family"] == "matmul" and o["phase"] == "forward"]
    assert {o["module"] for o in matmuls} == {"fc1", "fc2"}
    assert all(o["dtypes"] == ["float16"] and o["autocast"] == "float16" and o["flops"] > 0 for o in matmuls)
    assert [o["op"] for o in ops if o["family"] == "norm"] == ["native_layer_norm"]
    assert len({json.dumps({**o, "count": 0, "flops": 0}) for o in ops}) == len(ops)


def test_the_rest(whole: dict[str, Any]) -> None:
    found = whole["profile"]
    assert [s["scale"] for s in found["scale"]] == [1024.0] * 6
    assert not any(s["skipped"] for s in found["scale"])
    assert len(found["gradients"]) == 6
    assert all(0.0 < g["peak"] <= g["norm"] for g in found["gradients"])
    assert found["state"][0]["bytes per parameter"] == 8.0
    assert {row["name"] for row in found["layers"]["as-written"]} >= {"fc1.weight", "fc2.weight"}
    assert found["first_nonfinite"] is None


def iterations(build: Callable[[], object]) -> tuple[list[list[str]], dict[str, str]]:
    from ampcheck.evidence import Evidence

    return module._iterations(Evidence("c", "cpu", natural(Spec(build, "c"))))


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        ("after", ["scale", "backward", "unscale", "clip", "scaler_step", "update", "zero_grad"]),
        ("by hand", ["scale", "backward", "unscale", "clip", "scaler_step", "update", "zero_grad"]),
        ("before", ["scale", "backward", "clip", "unscale", "scaler_step", "update", "zero_grad"]),
        ("never", ["scale", "backward", "unscale", "scaler_step", "update", "zero_grad"]),
    ],
)
def test_a_clip_stands_where_gradients_are_written_to(clip: str, expected: list[str]) -> None:
    found, places = iterations(training(clip))
    assert found == [expected]
    if clip in ("after", "before"):
        line = int(places["clip"].rpartition(":")[2])
        assert "clip_grad_norm_" in Path(__file__).read_text("utf-8").splitlines()[line - 1]


def test_micro_batches_are_folded() -> None:
    assert iterations(training(micro=3))[0][0][:2] == ["3 x (scale, backward)", "unscale"]


def test_one_call_of_many_iterations_is_cut_at_updates() -> None:
    def build() -> object:
        step = training()()

        def train() -> None:
            for _ in range(3):
                step()

        return ampcheck.Training(train, calls=1)

    found, _ = iterations(build)
    assert found == [
        ["scale", "backward", "unscale", "clip", "scaler_step", "update"],
        ["zero_grad", "scale", "backward", "unscale", "clip", "scaler_step", "update"],
        ["zero_grad", "scale", "backward", "unscale", "clip", "scaler_step", "update", "zero_grad"],
    ]


def test_without_a_scaler_an_iteration_ends_at_the_step() -> None:
    def build() -> object:
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            model.weight.grad.div_(2.0)
            optimizer.step()

        return step

    assert iterations(build)[0] == [["zero_grad", "backward", "clip", "optimizer_step"]]


def test_a_skipped_step_is_seen_and_has_no_norm() -> None:
    run = natural(Spec(training(scale=2.0**30), "c"))
    from ampcheck.evidence import Evidence

    found = module.profile(Evidence("c", "cpu", run))
    assert found["scale"][0]["skipped"]
    assert found["gradients"][0] == {"call": 0, "optimizer": 0, "norm": None, "peak": None}
    assert [s["scale"] for s in found["scale"]][:2] == [2.0**30, 2.0**29]


def test_gradients_are_unscaled_behind_a_fused_optimizer() -> None:
    def build(fused: bool) -> Callable[[], object]:
        def make() -> object:
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)

            def step() -> None:
                optimizer.zero_grad()
                scaler.scale(model(torch.ones(3, 4)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()

            return step

        return make

    sizes = [natural(Spec(build(fused), "c")).notes["outline"].gradients[0] for fused in (True, False)]
    assert sizes[0].norm == pytest.approx(sizes[1].norm, rel=1e-6)


def test_a_fault_of_the_profile_keeps_no_verdict_from_being_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    from ampcheck import runner

    def broken(evidence: object) -> dict[str, Any]:
        raise KeyError("events")

    monkeypatch.setattr(runner, "profile", broken)
    report = ampcheck.check(training(), device="cpu").contracts[0]
    assert report.judged and report.facts["profile"] == {}
    assert any("KeyError" in note for note in report.facts["notes"])


def test_modules_of_two_models_are_told_apart() -> None:
    def build() -> object:
        one, two = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.Sequential(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            two(one(torch.ones(3, 4))).sum().backward()
            optimizer.step()

        return step

    from ampcheck.evidence import Evidence

    found = module.profile(Evidence("c", "cpu", natural(Spec(build, "c"))))
    assert [m["module"] for m in found["modules"]] == ["one", "one.0", "two", "two.0"]
    assert {o["module"] for o in found["ops"] if o["family"] == "matmul"} == {"one.0", "two.0"}


def test_what_is_done_to_gradients_that_no_step_waits_for_is_no_clip() -> None:
    def build() -> object:
        one, two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two))
        for p in two.parameters():
            p.grad = torch.zeros_like(p)

        def step() -> None:
            first.zero_grad()
            one(torch.ones(3, 4)).sum().backward()
            second.zero_grad(set_to_none=False)  # somebody else's, between a backward and its step
            first.step()
            one.weight.grad.mul_(0.5)  # used already
            two(torch.ones(3, 4)).sum().backward()
            second.step()

        return step

    found, _ = iterations(build)
    assert not any("clip" in name for iteration in found for name in iteration)


def test_a_recomputation_is_not_counted_as_a_forward() -> None:
    from torch.utils.checkpoint import checkpoint

    def build() -> object:
        layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))  # torch stops at what the last one saves
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            x = torch.ones(3, 4, requires_grad=True)
            checkpoint(layer, x, use_reentrant=False).sum().backward()
            optimizer.step()

        return step

    run = natural(Spec(build, "c"))
    assert [m.outputs for m in run.notes["outline"].modules] == [{"float32": 6}] * 3


def test_a_selection_narrows_what_check_reports() -> None:
    report = ampcheck.check(training("before"), device="cpu", select=["AMP102"], ignore=["AMP602"])
    assert {verdict.check for verdict in report.contracts[0].verdicts} == {"AMP102"}
    assert [finding.id for finding in report.findings] == ["AMP102"]
    assert report.contracts[0].facts["judged"]
