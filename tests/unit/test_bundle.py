"""Evidence bundles: what is kept, what is left out, and that loading one executes nothing."""

from __future__ import annotations

import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ampcheck import runner
from ampcheck.bundle import file, making, snapshot
from ampcheck.bundle.replaying import replay
from ampcheck.config import Settings
from ampcheck.contract import Options
from ampcheck.errors import UsageError
from ampcheck.findings import ContractReport

SECRET = 1234.5


def training(
    overflow_at: int | None = None, raise_at: int | None = None, seed: int = 0, width: int = 16, init_scale: float = 2.0**8
) -> Callable[[], Any]:
    """Builds a step whose call `overflow_at` gives a linear layer more than float16 holds."""

    def build() -> Callable[[], Any]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
        data = torch.randn(48, 8)
        data[8, 0] = SECRET / 1000.0
        made = 0

        def step() -> torch.Tensor:
            nonlocal made
            inputs = data[made * 8 : made * 8 + 8]
            noise = torch.randn(8, 4) + random.random() + np.random.rand()
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                outputs = model(inputs * (30000.0 if made == overflow_at else 1.0))
            if made == raise_at:
                raise RuntimeError("the data end here")
            made += 1
            loss = torch.nn.functional.mse_loss(outputs.float(), noise)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return step

    return build


def judged(build: Callable[[], Any], directory: Path | None, batch: int | None = None, **more: Any) -> ContractReport:
    settings = Settings(evidence=directory, evidence_batch=batch, budget=0.001, **more)  # the natural run is all that is needed
    return runner.judge(build, contract="tests/test_amp.py::net", device="cpu", options=Options(), settings=settings)


def bundle_of(build: Callable[[], Any], directory: Path, batch: int | None = None) -> dict[str, Any]:
    report = judged(build, directory, batch)
    (path,) = directory.iterdir()
    assert report.facts["evidence"] == str(path)
    return file.read(path)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return bundle_of(training(overflow_at=2), tmp_path_factory.mktemp("evidence"), batch=1 << 20)


def test_an_overflow_leaves_what_is_needed_to_see_it_again(bundle: dict[str, Any]) -> None:
    assert (bundle["format"], bundle["version"], bundle["contract"], bundle["device"]) == (
        "ampcheck evidence", 1, "tests/test_amp.py::net", "cpu"
    )  # fmt: skip
    assert bundle["call"] == 2
    assert "the loss is not finite" in bundle["why"]
    assert [entry["skipped"] for entry in bundle["scale"]] == [False, False, True, False, False, False]
    rows = {row["call"]: row for row in bundle["steps"]}
    assert [rows[call]["taken"] for call in range(6)] == [True, True, False, True, True, True]
    assert rows[1]["scaled_peak"] == pytest.approx(rows[1]["peak"] * 2.0**8)
    assert 0 < rows[1]["peak"] <= rows[1]["norm"] < float("inf")
    assert not torch.tensor(rows[2]["norm"]).isfinite()
    assert bundle["first_module"] == {
        "call": 2, "module": "0", "kind": "Linear", "phase": "forward", "dtype": "float16", "input": "finite"
    }  # fmt: skip
    assert set(bundle["states"]["parts"]) == {"module model", "optimizer 0", "scaler 0"}
    assert bundle["environment"]["torch"] == torch.__version__


def test_it_holds_the_norms_that_the_step_has(tmp_path: Path) -> None:
    """Against gradients computed by hand."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    x = torch.tensor([3.0, -4.0])

    def build() -> Callable[[], Any]:
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(weight.detach().clone())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def step() -> float:
            optimizer.zero_grad()
            (model.weight * x).sum().backward()
            optimizer.step()
            return float("nan")

        return step

    rows = bundle_of(build, tmp_path)["steps"]
    assert [(row["norm"], row["peak"], row["scale"]) for row in rows] == [(5.0, 4.0, 1.0)] * 6


def test_a_finite_contract_leaves_none_and_removes_an_old_one(tmp_path: Path) -> None:
    bundle_of(training(overflow_at=2), tmp_path)
    report = judged(training(), tmp_path)
    assert report.facts["evidence"] is None
    assert list(tmp_path.iterdir()) == []


def test_first_overflows_while_the_scale_settles_are_no_evidence(tmp_path: Path) -> None:
    report = judged(training(init_scale=2.0**18), tmp_path)
    skipped = [entry["skipped"] for entry in report.facts["profile"]["scale"]]
    assert any(skipped)
    assert not all(skipped)
    assert report.facts["evidence"] is None


def test_a_loop_that_skips_every_step_leaves_its_first(tmp_path: Path) -> None:
    found = bundle_of(training(init_scale=2.0**40), tmp_path)
    assert (found["call"], found["why"][0]) == (0, "every step was skipped")


def test_without_the_option_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("evidence was gathered")

    monkeypatch.setattr("ampcheck.bundle.keeper.Keeper.__init__", never)
    assert "evidence" not in judged(training(overflow_at=2), None).facts


def test_the_step_raising_is_evidence_of_its_call(tmp_path: Path) -> None:
    found = bundle_of(training(raise_at=3), tmp_path)
    assert found["call"] == 3
    assert "the data end here" in found["judged"]["raised"]
    assert found["states"]["kept"]


def test_a_failed_check_of_numbers_is_evidence_of_the_first_call(tmp_path: Path) -> None:
    """Parity fails, and the natural run is finite."""

    def build() -> Callable[[], Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(8, 8)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
                if out.dtype is torch.bfloat16:
                    out = out * 1.5
            loss = out.float().square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    settings = Settings(evidence=tmp_path)
    report = runner.judge(build, contract="net", device="cpu", options=Options(), settings=settings)
    failed = {v.check for v in report.verdicts if v.outcome == "failed"}
    (path,) = tmp_path.iterdir()
    found = file.read(path)
    assert (
        failed & {"AMP501", "AMP502", "AMP503", "AMP504"} == {*found["why"]} & {"AMP501", "AMP502", "AMP503", "AMP504"} != set()
    )
    assert (found["call"], found["judged"]["not finite"]) == (0, [])
    assert {f["id"] for f in found["findings"]} >= {*found["why"]} - {v.check for v in report.verdicts if v.follows}


# -- data of the training -------------------------------------------------------------------------------------------


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for v in inner for t in tensors_in(v)]


def test_the_batch_stays_here_unless_it_is_asked_for(tmp_path: Path) -> None:
    found = bundle_of(training(overflow_at=1), tmp_path)
    assert not found["batch"]["kept"]
    assert "--ampcheck-evidence-batch" in found["batch"]["reason"]
    marked = [t for t in tensors_in(found) if t.is_floating_point() and bool((t == SECRET / 1000.0).any())]
    assert marked == []


def test_the_batch_is_what_the_step_reads_and_nothing_it_makes_or_trains(bundle: dict[str, Any]) -> None:
    assert bundle["batch"]["kept"]
    (held,) = bundle["batch"]["tensors"]
    assert held.shape == (8, 8)
    assert bundle["batch"]["bytes"] == 256
    assert held.untyped_storage().nbytes() == 256, "a slice must not carry the rest of the data with it"


def test_a_batch_beyond_the_cap_is_left_out_whole(tmp_path: Path) -> None:
    found = bundle_of(training(overflow_at=1), tmp_path, batch=255)
    assert (found["batch"]["kept"], found["batch"]["bytes"], found["batch"]["tensors"]) == (False, 256, [])
    assert "more than the 255" in found["batch"]["reason"]


def test_states_beyond_the_limit_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(snapshot.states, "__defaults__", (100,))
    found = bundle_of(training(overflow_at=1), tmp_path)
    assert not found["states"]["kept"]
    assert found["states"]["parts"] == {}
    assert "more than the 100" in found["states"]["reason"]
    assert replay(training(overflow_at=1), found, "net").reproduced, "the generators are enough where calls repeat"


def test_state_that_is_no_plain_data_is_left_out_by_name(tmp_path: Path) -> None:
    class Odd(torch.nn.Linear):
        def get_extra_state(self) -> object:
            return object()

    def odd() -> Callable[[], Any]:
        model = Odd(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> float:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            return float("inf")

        return step

    found = bundle_of(odd, tmp_path)
    assert "module model" in found["states"]["reason"]
    assert set(found["states"]["parts"]) == {"optimizer 0"}


# -- replaying ------------------------------------------------------------------------------------------------------


def test_a_replay_starts_as_the_call_did(bundle: dict[str, Any]) -> None:
    again = replay(training(overflow_at=2), bundle, "net")
    assert again.reproduced
    assert again.lost == []
    assert len(again.restored) == 3
    assert str(again.steps) == str([row for row in bundle["steps"] if row["call"] == 2])  # NaN is not equal to itself
    assert again.module == bundle["first_module"]


def test_a_replay_of_mended_code_says_so(bundle: dict[str, Any]) -> None:
    again = replay(training(), bundle, "net")
    assert again.reached
    assert not again.reproduced
    assert again.not_finite == []


def test_states_generators_and_batch_decide_not_what_the_code_would_do_by_itself(tmp_path: Path) -> None:
    """Another seed gives other weights, data and draws: the bundle puts those back that it holds."""
    found = bundle_of(training(overflow_at=2), tmp_path, batch=1 << 20)
    same = replay(training(overflow_at=None, seed=0), found, "net").returned["value"]
    other = replay(training(overflow_at=None, seed=7), found, "net")
    assert other.returned["value"] == pytest.approx(same, rel=1e-6)
    assert other.restored[-1] == "the batch (1 tensors, of which 1 had other values)"
    found["batch"] = {"kept": False, "reason": "", "bytes": 0, "tensors": []}
    assert replay(training(overflow_at=None, seed=7), found, "net").returned["value"] != pytest.approx(same, rel=1e-6)


def test_draws_that_the_code_makes_elsewhere_now_do_not_matter(bundle: dict[str, Any]) -> None:
    build = training()
    as_it_was = replay(build, bundle, "net").returned["value"]

    def drawing() -> Callable[[], Any]:
        step, calls = build(), iter(range(99))

        def more() -> Any:
            if next(calls) < 2:  # before the call of the bundle
                torch.rand(3), random.random(), np.random.rand()
            return step()

        return more

    assert replay(drawing, bundle, "net").returned["value"] == pytest.approx(as_it_was, rel=1e-6)


def test_what_does_not_fit_any_more_is_told(bundle: dict[str, Any]) -> None:
    again = replay(training(overflow_at=2, width=12), bundle, "net")
    assert any(what.startswith("module model: ") for what in again.lost)


def test_a_run_that_ends_before_the_call_is_told(bundle: dict[str, Any]) -> None:
    again = replay(training(raise_at=1), bundle, "net")
    assert not again.reached
    assert again.raised is not None


def test_the_users_data_are_not_written_to(bundle: dict[str, Any]) -> None:
    array = np.zeros((8, 8), dtype="float32")  # may be a file, mapped into memory
    data = torch.from_numpy(array)

    def build() -> Callable[[], Any]:
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> torch.Tensor:
            loss = model(data).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    again = replay(build, {**bundle, "call": 0}, "net")
    assert again.restored[-1] == "the batch (1 tensors, of which 1 had other values)"
    assert not array.any()


def test_generators_are_put_back_as_they_were() -> None:
    before = snapshot.generators()
    first = (random.random(), np.random.rand(), float(torch.rand(())))
    assert list(snapshot.put_generators(before)) == []
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == first


# -- files of somebody else -----------------------------------------------------------------------------------------


class Payload:
    """What a pickle may do to whoever loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("kind", ["torch", "pickle", "hidden", "torchscript name"])
def test_a_file_with_a_payload_is_refused_and_nothing_of_it_runs(tmp_path: Path, bundle: dict[str, Any], kind: str) -> None:
    path, trace = tmp_path / "evil.ampcheck.pt", tmp_path / "pwned"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Payload(trace)))
    elif kind == "hidden":
        torch.save({**bundle, "findings": [{"id": Payload(trace)}]}, path)
    else:
        torch.save({"format": file.FORMAT, "version": 1, "x": Payload(trace)}, path)
    if kind == "torchscript name":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("evil/constants.pkl", b"")
    with pytest.raises(UsageError, match="refused") as refusal:
        file.read(path)
    assert not trace.exists()
    if kind in ("torch", "hidden"):
        assert "objects other than tensors and plain data" in str(refusal.value)
        torch.load(path, weights_only=False)  # so that the test can fail: loaded carelessly, it does its work
        assert trace.exists()


def test_what_is_no_bundle_of_this_version_is_refused_in_words(tmp_path: Path, bundle: dict[str, Any]) -> None:
    path = tmp_path / "x.pt"

    def refused(data: Any, message: str) -> None:
        torch.save(data, path)
        with pytest.raises(UsageError, match=message):
            file.read(path)

    refused({"state": torch.ones(2)}, "not an evidence bundle")
    refused([1, 2], "not an evidence bundle")
    refused({**bundle, "version": 2}, "newer ampcheck .format 2; this one reads 1")
    refused({**bundle, "version": True}, "not a version")
    refused({**bundle, "version": "1"}, "not a version")
    refused({**bundle, "call": "0"}, "'call' is missing or of the wrong kind")
    refused({**bundle, "call": 10**9}, "a call that there cannot be")
    refused({**bundle, "call": -1}, "a call that there cannot be")
    refused({k: v for k, v in bundle.items() if k != "rng"}, "'rng' is missing")
    torch.save(bundle, path)
    assert file.read(path)["call"] == 2
    whole = path.read_bytes()
    for part in (
        whole[: len(whole) // 2],
        b"",
        b"hello",
        whole[:-30],
        whole[: len(whole) // 3] + bytes(64) + whole[len(whole) // 3 + 64 :],
    ):
        path.write_bytes(part)
        with pytest.raises(UsageError, match="refused"):
            file.read(path)
    with pytest.raises(UsageError, match="no such file"):
        file.read(tmp_path / "nowhere.pt")
    with pytest.raises(UsageError, match="no such file"):
        file.read(tmp_path)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, bundle: dict[str, Any]) -> None:
    path = tmp_path / "x.pt"
    torch.save(bundle, path)
    with pytest.raises(UsageError, match="more than the 1000"):
        file.read(path, 1000)
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(1 << 24))
    assert bomb.stat().st_size < 1 << 16
    with pytest.raises(UsageError, match="unpacks to more"):
        file.read(bomb)


@pytest.mark.parametrize(
    "contract", ["a::b[../../x]", "a::b[" + "x" * 10_000 + "]", "a::b[\x1b[2J\n\0]", "a::é", "a::b[\ud800]", "::", "CON", "-rf"]
)
def test_every_contract_has_a_file_name_of_its_own(tmp_path: Path, contract: str) -> None:
    path = making.path_of(tmp_path, contract, "cpu")
    assert path.parent == tmp_path
    assert len(path.name) < 128
    assert path.name.endswith(file.SUFFIX)
    assert path.name.isascii()
    assert not path.name.startswith(("-", "."))
    assert path != making.path_of(tmp_path, contract + "x", "cpu")
    assert path != making.path_of(tmp_path, contract, "cuda")


def test_a_bundle_that_cannot_be_written_takes_no_verdict_with_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = judged(training(overflow_at=2), tmp_path / "file" / "evidence")
    assert report.facts["evidence"] is None
    assert [note for note in report.facts["notes"] if note.startswith("no evidence bundle: NotADirectoryError")]
    assert report.verdicts


def test_paths_of_this_machine_stay_out_of_it(bundle: dict[str, Any]) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        return [t for v in inner for t in texts(v)]

    assert [t for t in texts(bundle) if str(Path(__file__).parent.parent) in t] == []


def test_a_fault_of_the_watcher_costs_no_verdict_and_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = {(v.check, v.outcome) for v in judged(training(overflow_at=2), tmp_path).verdicts}

    def breaks(*_: Any) -> Any:
        raise ZeroDivisionError("ours")

    for name in ("_size", "_lost", "_module_names", "generators", "states"):
        monkeypatch.setattr(f"ampcheck.bundle.keeper.{name}", breaks)
        report = judged(training(overflow_at=2), tmp_path)
        assert {(v.check, v.outcome) for v in report.verdicts} == expected
        if name in ("generators", "states"):  # then there is no moment to go back to
            assert any("no evidence bundle: UsageError: ZeroDivisionError: ours" in note for note in report.facts["notes"])
        else:
            assert file.read(Path(report.facts["evidence"]))["judged"]["unwatched"] == "ZeroDivisionError: ours"
        monkeypatch.undo()
