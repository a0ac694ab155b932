"""The autocast tables: what is shipped agrees with what this torch does, and lookups, fallbacks and diffs say the truth."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampcheck import facts
from ampcheck.errors import UsageError
from ampcheck.facts import cli
from ampcheck.facts.measure import measure
from ampcheck.facts.table import Row, Table, op_name

HERE = facts.release(torch.__version__)


@pytest.fixture(scope="module")
def table() -> Table:
    return facts.load("cpu")


@pytest.fixture(scope="module")
def measured() -> Table:
    return measure("cpu")


@pytest.fixture
def fresh_loads() -> Iterator[None]:
    facts._load.cache_clear()
    yield
    facts._load.cache_clear()


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, torch.ones(4, 4)),
    "conv1d": lambda x: F.conv1d(x[None], torch.ones(2, 4, 3)),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "softmax": lambda x: x.softmax(-1),
    "exp": lambda x: x.exp(),
    "mean": lambda x: x.mean(),
    "prod": lambda x: x.prod(-1),
    "cdist": lambda x: torch.cdist(x, x),
    "relu": lambda x: x.relu(),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
    "mse_loss": lambda x: F.mse_loss(x, torch.zeros_like(x)),
    "rnn": lambda x: nn.RNN(4, 4)(x)[0],
}


@pytest.mark.parametrize("given", ["float32", "low"])
@pytest.mark.parametrize("amp", ["float16", "bfloat16"])
@pytest.mark.parametrize("function", CALLS)
def test_the_table_gives_the_dtype_that_the_function_returns(table: Table, function: str, amp: str, given: str) -> None:
    dtype = getattr(torch, amp)
    x = torch.rand(4, 4).to(dtype if given == "low" else torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        seen = CALLS[function](x).dtype
    assert table.output_dtype(function, dtype, x.dtype) == str(seen).removeprefix("torch.")


@pytest.mark.parametrize("norm", ["layer_norm", "group_norm", "batch_norm"])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_saved_statistics_follow_the_weights_on_the_cpu(table: Table, norm: str, weights: torch.dtype) -> None:
    x, one = torch.rand(8, 4).to(torch.bfloat16), torch.ones(4, dtype=weights)
    saved = {
        "layer_norm": lambda: torch.native_layer_norm(x, (4,), one, one, 1e-5),
        "group_norm": lambda: torch.native_group_norm(x, one, one, 8, 4, 1, 2, 1e-5),
        "batch_norm": lambda: torch.native_batch_norm(x, one, one, one.clone(), one.clone(), True, 0.1, 1e-5),
    }[norm]()[1].dtype
    assert table.saved_statistics(norm, "bfloat16", x.dtype, weights) == str(saved).removeprefix("torch.")
    assert table.saved_statistics(f"aten.native_{norm}.default", torch.bfloat16, "bfloat16", str(weights)) == str(saved)[6:]


def test_what_is_measured_here_agrees_with_what_is_shipped(measured: Table) -> None:
    if ("cpu", HERE) not in facts.shipped():
        pytest.skip(f"no table is shipped for torch {torch.__version__}")
    shipped = facts.read(f"cpu:{HERE[0]}.{HERE[1]}")
    # Other libraries register ops of their own with autocast once they are imported.
    assert {op: policy for op, policy in measured.policies.items() if "::" not in op} == shipped.policies
    # Which fused kernels exist depends on the processor: what cannot run on one of two may run on the other.
    moved = [str(change) for change in shipped.diff(measured) if "none (" not in str(change) and "::" not in str(change)]
    assert moved == []
    assert [row.output for row in measured.rows.values()].count(None) < len(measured.rows) / 10


def test_measuring_leaves_no_trace() -> None:
    torch.manual_seed(7)
    state, default = torch.get_rng_state(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            again = measure("cpu")
            assert not torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(default)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.is_autocast_enabled("cpu")
    assert again.output_dtype("relu", None, "float32") == "float32"


def test_measuring_twice_gives_the_same_table(measured: Table) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measure("cpu").dumps() == measured.dumps()


#: On autocast's list, but not callable by themselves: the cuDNN recurrence is measured through nn.LSTM and nn.GRU.
UNMEASURED = {"_lu_with_info", "lu_solve", "qr", "_cudnn_rnn"}


@pytest.mark.parametrize("name", [f"{device}:{major}.{minor}" for device, (major, minor) in facts.shipped()])
def test_every_shipped_table_is_complete(name: str) -> None:
    shipped = facts.read(name)
    assert {op for op, policy in shipped.policies.items() if policy == "unmeasured"} <= UNMEASURED
    assert not [key for key, row in shipped.rows.items() if key[1:] == ("off", "float32") and row.output is None]
    assert f"{shipped.device}:{shipped.torch}".startswith(name)
    for op in (
        "linear",
        "aten.addmm.default",
        "aten::bmm",
        "conv2d",
        "aten.convolution.default",
        "einsum",
        "multi_head_attention",
    ):
        assert shipped.casts_to_low(op), op
    for op in ("relu", "layer_norm", "aten._softmax.default", "aten.add.Tensor", "cross_entropy", "no_such_op"):
        assert not shipped.casts_to_low(op), op
    assert shipped.casts_to_fp32("aten.mse_loss.default")
    assert shipped.policy("relu") == "leave"


def test_policies_of_the_cpu(table: Table) -> None:
    assert [op for op in ("cat", "stack", "add", "linear") if table.promotes(op)] == ["cat", "stack"]
    assert table.output_dtype("cat", "float16", "mixed") == "float32"
    assert not table.casts_to_fp32("softmax")
    assert {"softmax", "gumbel_softmax"} <= {*table.functions_of("aten._softmax.default")}
    assert table.functions_of("aten.relu.default") == ("relu",)
    assert table.output_dtype("cat", "float16", "bfloat16") is None
    assert table.output_dtype("no_such_function", "float16", "float32") is None
    assert table.norm("no_such_norm", "float16", "float16") is None


def test_the_cpu_sums_the_bias_gradient_of_layer_norm_in_16_bits(table: Table) -> None:
    lossy, fine = table.norm("layer_norm", "bfloat16", "bfloat16"), table.norm("batch_norm", "bfloat16", "bfloat16")
    assert lossy is not None
    assert fine is not None
    assert (lossy.bias_gradient, fine.bias_gradient) == ("lossy", "fp32")
    x, bias = torch.rand(2048, 8).bfloat16(), torch.zeros(8, requires_grad=True)
    seed = torch.rand(2048, 8).bfloat16()
    (gradient,) = torch.autograd.grad(F.layer_norm(x, (8,), torch.ones(8), bias), bias, seed)
    error = ((gradient - seed.float().sum(0)) / seed.float().sum(0)).abs().max()
    assert error > torch.finfo(torch.bfloat16).eps


def test_evaluation_saves_no_batch_statistics(table: Table) -> None:
    assert table.saved_statistics("batch_norm", "float16", "float16") == "float32"
    assert table.saved_statistics("batch_norm", "float16", "float16", training=False) is None
    assert table.saved_statistics("aten.native_batch_norm.default", "float16", "float16", training=False) is None
    assert table.saved_statistics("layer_norm", "float16", "float16", training=False) == "float32"


@pytest.mark.usefixtures("fresh_loads")
def test_an_unknown_version_falls_back_to_the_nearest_and_says_so() -> None:
    near = facts.load("cpu", "2.5.1")
    assert (near.origin, facts.release(near.torch)) == ("nearest", (2, 4))
    assert near.note == "no table for cpu torch 2.5; this is the nearest shipped one, torch 2.4"
    newest = max(version for device, version in facts.shipped() if device == "cpu")
    assert facts.release(facts.load("cpu:0", "9.9").torch) == newest


@pytest.mark.usefixtures("fresh_loads")
def test_of_two_equally_near_tables_the_newer_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    known = facts.shipped()
    two = {("cpu", (2, 11)): known["cpu", (2, 4)], ("cpu", (2, 13)): known["cpu", (2, 13)]}
    monkeypatch.setattr(facts, "shipped", lambda: two)
    assert facts.load("cpu", "2.12").torch.startswith("2.13")


@pytest.mark.usefixtures("fresh_loads")
def test_a_missing_table_of_the_running_torch_is_measured(monkeypatch: pytest.MonkeyPatch, measured: Table) -> None:
    others = {key: path for key, path in facts.shipped().items() if key != ("cpu", HERE)}
    monkeypatch.setattr(facts, "shipped", lambda: others)
    monkeypatch.setattr("ampcheck.facts.measure.measure", lambda device: measured)
    assert facts.load("cpu") is measured
    assert facts.load("cpu", measure=False).origin == "nearest"


@pytest.mark.usefixtures("fresh_loads")
def test_no_table_at_all_is_an_error() -> None:
    with pytest.raises(UsageError, match="no autocast table for device type 'toaster'"):
        facts.load("toaster")
    with pytest.raises(UsageError, match="no torch version"):
        facts.load("cpu", "newest")


def test_a_table_survives_its_file(tmp_path: Path, measured: Table) -> None:
    measured.save(tmp_path / "t.json")
    again = Table.read(tmp_path / "t.json", "measured")
    assert again == measured
    (tmp_path / "other.json").write_text('{"version": 0}')
    with pytest.raises(ValueError, match="no autocast table"):
        Table.read(tmp_path / "other.json", "file")


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten.native_layer_norm.default", "native_layer_norm"),
        ("aten::addmm", "addmm"),
        (torch.ops.aten.sum.dim_IntList, "sum"),
        (torch.ops.aten.sum, "sum"),
        ("prod.dim_int", "prod"),
        ("torch.nn.functional.gelu", "gelu"),
        ("F.rms_norm", "rms_norm"),
        ("torchvision.nms.default", "torchvision::nms"),
        ("torchvision::nms", "torchvision::nms"),
    ],
)
def test_ops_are_found_by_any_of_their_names(op: object, name: str) -> None:
    assert op_name(op) == name


def test_diff_shows_that_rms_norm_moved_from_fp32_to_half() -> None:
    changes = [str(change) for change in facts.read("cpu:2.4").diff(facts.read("cpu:2.13"))]
    assert "rms_norm train, float16 autocast, float16 input, float32 weight, output: float32 -> float16" in changes
    assert len(changes) < 30


def test_diff_names_each_kind_of_change(table: Table) -> None:
    rows = {**table.rows, ("exp", "float16", "float16"): Row("float32")}
    key = ("layer_norm", "train", "float16", "float16", "float32")
    norms = {**table.norms, key: type(table.norms[key])("float16", "float16", "native_layer_norm", "fp32")}
    other = Table(table.device, table.torch, table.device_name, {**table.policies, "exp": "fp32"}, table.lowered, rows, norms)
    assert [str(change) for change in table.diff(other)] == [
        "autocast list, exp: leave -> fp32",
        "exp, float16 autocast, float16 input, output: float16 -> float32",
        "layer_norm train, float16 autocast, float16 input, float32 weight, saved statistics: float32 -> float16",
        "layer_norm train, float16 autocast, float16 input, float32 weight, bias gradient: lossy -> fp32",
    ]
    assert table.diff(table) == []


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.main(parser.parse_args(arguments))


def test_cli_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--torch", "2.13") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "torch 2.13.0+cpu" in lines[0]
    linear = next(line for line in lines if line.startswith("linear "))
    assert linear.split() == ["linear", "float16", "float16", "bfloat16", "bfloat16"]
    norm = next(line for line in lines if line.startswith("layer_norm train"))
    assert "float16/float32/lossy" in norm


def test_cli_saves_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--torch", "2.4", "--out", str(tmp_path / "a.json")) == 0
    assert run("--diff", str(tmp_path / "a.json"), "cpu:2.4") == 0
    assert "0 differences" in capsys.readouterr().out
    assert run("--diff", str(tmp_path / "a.json"), "cpu:2.13") == 1
    assert "rms_norm" in capsys.readouterr().out


def test_cli_says_when_it_falls_back_and_when_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--torch", "2.5") == 0
    assert "nearest shipped one, torch 2.4" in capsys.readouterr().err
    assert run("--diff", "cpu:2.4", "cpu:1.0") == 2
    assert "cpu:2.13" in capsys.readouterr().err
    assert run("--device", "toaster", "--measure") == 2
    assert "no toaster device" in capsys.readouterr().err
    assert run("--torch", "2.4", "--measure") == 2


def test_reading_and_comparing_tables_does_not_import_torch() -> None:
    code = (
        "import sys, argparse; from ampcheck.facts import cli; p = argparse.ArgumentParser(); cli.add_arguments(p);"
        "cli.main(p.parse_args(['--diff', 'cpu:2.4', 'cpu:2.13'])); cli.main(p.parse_args(['--torch', '2.13']));"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_measuring_module_is_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: Table) -> None:
    from ampcheck.facts import measure as module

    monkeypatch.setattr(module, "measure", lambda device: measured)
    assert module.main(["--device", "cpu", "--out", str(tmp_path / "t.json")]) == 0
    assert Table.read(tmp_path / "t.json", "measured") == measured
    with pytest.raises(SystemExit):
        module.main(["--device", "toaster", "--out", str(tmp_path / "u.json")])
