"""`ampcheck run`, `report` and `doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ampcheck.cli import doctor, main

STEPS = """
import ampcheck
import torch


def build(device="cpu", clip_first=False):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        if not clip_first:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


@ampcheck.contract(xfail={"AMP102": "known"})
def expected(amp_device):
    return build(amp_device, clip_first=True)


def clipped(device):
    return build(device, clip_first=True)


def needs(amp_device, data):
    return build(amp_device)


def infinite():
    return lambda: float("inf")


class Nets:
    good = staticmethod(build)
"""
DOCUMENT = {
    "version": 1,
    "environment": {"torch": "2.0"},
    "findings": [],
    "costs": [],
    "items": [
        {"contract": "a.py::b", "device": "cpu", "check": "AMP101", "slug": "x", "policy": "as-written", "outcome": "passed", "reason": "",
         "seconds": 0.0}
    ],
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("steps", "test_steps"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "steps.py").write_text(STEPS)
    yield tmp_path
    sys.modules.pop("steps", None)


# -- run ------------------------------------------------------------------------------------------------------------


def test_a_good_step_is_zero_and_a_bad_one_is_one(here, capsys):
    assert main(["run", "steps:build", "--device=cpu"]) == 0
    assert main(["run", "steps.py:clipped", "--device", "cpu", "--json", "out/report.json", "--markdown", "out/report.md"]) == 1
    shown = capsys.readouterr().out
    assert "AMP102 clip-scaled-gradients    steps.py:clipped [cpu]" in shown
    assert "steps.py:2" in shown
    report = json.loads((here / "out" / "report.json").read_text())
    assert [f["id"] for f in report["findings"]] == ["AMP102"]
    assert report["findings"][0]["location"]["file"] == "steps.py"
    assert "AMP102" in (here / "out" / "report.md").read_text()


def test_what_a_contract_declares_counts(here):
    assert main(["run", "steps:expected", "--device=cpu"]) == 0


def test_methods_and_selections(here, capsys):
    assert main(["run", "steps:Nets.good", "--device=cpu", "--select", "AMP10,AMP2"]) == 0
    assert main(["run", "steps:clipped", "--device=cpu", "--ignore", "AMP102,AMP101"]) == 0
    assert main(["run", "steps:clipped", "--device=cpu", "--select", "AMP2", "--json=r.json"]) == 0
    assert {item["check"][:4] for item in json.loads((here / "r.json").read_text())["items"]} == {"AMP2"}


def test_a_step_of_which_nothing_could_be_judged_is_one(here, capsys):
    assert main(["run", "steps:infinite", "--device=cpu"]) == 1
    assert "no check of scaler order and scaling reached a verdict" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["steps"], "names no function"),
        (["steps:"], "names no function"),
        (["nowhere:f"], "nowhere cannot be imported: ModuleNotFoundError"),
        (["nowhere.py:f"], "FileNotFoundError"),
        (["steps:nothing"], "there is no function 'nothing' in steps; its contracts are expected"),
        (["steps:needs"], "the function needs data, which only pytest's fixtures can give"),
        (["steps:build", "--select=AMP999"], "no check is called 'AMP999'"),
        (["steps:build", "--dtype=int8"], "'int8' is not a 16-bit float dtype"),
        (["steps:build", "--device=cuda:1"], "give a device type"),
        (["steps:build", "--device=xpu"], "there is no xpu device"),
        (["broken:f"], "broken cannot be imported: SyntaxError"),
    ],
)
def test_what_cannot_be_run_is_two_with_a_sentence(here, capsys, arguments, message):
    (here / "broken.py").write_text("def f(:\n")
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("made", "hint"), [("src/inner/__init__.py", "src"), ("lib/inner.py", "lib"), ("src/inner/other.py", None)]
)
def test_a_module_one_directory_further_down_is_pointed_at(here, capsys, made, hint):
    (here / made).parent.mkdir(parents=True)
    (here / made).write_text("")
    (here / "outer.py").write_text("from inner.thing import f\n")
    assert main(["run", "outer:f"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.endswith(
        f"No module named 'inner'; it is in {hint}/: install the project, or set PYTHONPATH={hint}"
        if hint
        else "No module named 'inner'"
    )


# -- report ---------------------------------------------------------------------------------------------------------


def test_a_report_is_rewritten_in_every_format(here, capsys):
    (here / "in.json").write_text(json.dumps(DOCUMENT))
    formats = ("html", "markdown", "sarif", "junit", "json")
    assert main(["report", "in.json", *(f"--{name}=out/report.{name}" for name in formats)]) == 0
    assert capsys.readouterr().out.split() == [str(Path("out", f"report.{name}")) for name in formats]
    assert all((here / "out" / f"report.{name}").stat().st_size for name in formats)
    assert json.loads((here / "out" / "report.json").read_text()) == DOCUMENT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not JSON, or was cut short"),
        (json.dumps(DOCUMENT)[:-9], "it is not JSON, or was cut short"),
        ("[" * 100_000, "it is not JSON, or was cut short"),
        ("[]", "not a report of ampcheck"),
        ("null", "not a report of ampcheck"),
        ('{"version": 1}', "not a report of ampcheck"),
        ('{"version": "1", "findings": [], "items": []}', "not a report of ampcheck"),
        ('{"version": 1, "findings": [3], "items": []}', "not a report of ampcheck"),
        (json.dumps({**DOCUMENT, "version": 2}), "written by a newer ampcheck (version 2; this one reads 1)"),
        (json.dumps({**DOCUMENT, "version": 0}), "refused"),
        (json.dumps({**DOCUMENT, "items": [{"contract": 3}]}), "refused"),
    ],
)
def test_what_is_no_report_is_refused_in_words(here, capsys, text, message):
    (here / "in.json").write_text(text)
    assert main(["report", "in.json", "--html", "out.html"]) == 2
    assert message in capsys.readouterr().err
    assert not (here / "out.html").exists()


def test_a_report_that_is_not_there_or_cannot_be_written(here, capsys):
    assert main(["report", "nowhere.json", "--html=x.html"]) == 2
    (here / "in.json").write_bytes(b"\xff\xfe\x00")
    assert main(["report", "in.json", "--html=x.html"]) == 2
    (here / "in.json").write_text(json.dumps(DOCUMENT))
    assert main(["report", "in.json"]) == 2
    assert "name a format" in capsys.readouterr().err
    (here / "file").write_text("")
    assert main(["report", "in.json", "--markdown=file/x.md"]) == 2
    assert "cannot be written" in capsys.readouterr().err


# -- doctor ---------------------------------------------------------------------------------------------------------


def lines(text):
    return {line[8:].split("  ")[0].strip(): line[:8].strip() for line in text.splitlines()}


def test_a_machine_that_works_is_zero(capsys, monkeypatch):
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    assert main(["doctor"]) == 0
    found = lines(capsys.readouterr().out)
    assert found["torch"] == found["cpu"] == found["plugin"] == found["AMP1, AMP2"] == "ok"
    assert found["AMP8"] == "no"


def test_without_torch_it_says_so_and_what_still_works():
    program = "import sys; sys.modules['torch'] = None\nfrom ampcheck.cli import main\nsys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert lines(done.stdout)["torch"] == "broken"
    assert "none can be judged without torch" in done.stdout


def test_a_gpu_that_does_not_work_is_broken_and_the_rest_is_told(monkeypatch, capsys):
    import torch

    def off_the_bus(*_):
        raise RuntimeError("CUDA error: device not ready\x1b[31m")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", off_the_bus)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert lines(shown)["cuda"] == "broken"
    assert "CUDA error: device not ready" in shown
    assert "\x1b" not in shown
    assert lines(shown)["AMP603"] == "no"


def test_a_dtype_that_does_not_run_is_named(monkeypatch):
    import torch

    def only_float32(device, dtype, enabled=True):
        if dtype is torch.bfloat16:
            raise RuntimeError("no bfloat16 here")
        return torch.enable_grad()

    monkeypatch.setattr(torch, "autocast", only_float32)
    state, _, what = doctor._device(torch, "cpu")
    assert state == "ok"
    assert what == "float32; not: float16 (it gives torch.float32); bfloat16 (RuntimeError: no bfloat16 here)"


def test_what_to_install_is_said_only_where_it_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "xdist" else object())
    main(["doctor"])
    shown = capsys.readouterr().out
    assert "contracts in parallel: pip install pytest-xdist" in shown
    assert lines(shown)["xdist"] == "no"
    assert shown.count("pip install") == 1


def test_a_plugin_that_pytest_does_not_load_by_itself(monkeypatch, capsys):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    main(["doctor"])
    assert "add -p ampcheck.plugin" in capsys.readouterr().out
