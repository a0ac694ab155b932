"""`--ampcheck-evidence` and `ampcheck replay`, from outside: a session leaves a bundle, and the command runs its step again."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ampcheck.bundle import file
from ampcheck.cli import main

PROJECT = """
import ampcheck
import pytest
import torch

BROKEN = True


def build(device, width):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Linear(width, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    data, calls = torch.randn(48, 8, device=device), 0

    def step():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(data[calls * 8 - 8 : calls * 8] * (1e5 if BROKEN and calls == 3 else 1.0))
        loss = out.float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


@pytest.fixture
def width():
    return 16


@pytest.mark.parametrize("name", ["a b", "x::y[z]"])
@ampcheck.contract(devices="cpu", select=["AMP310"])
def net(amp_device, width, name):
    return build(amp_device, width)
"""


def ampcheck(directory, *arguments):
    command = [sys.executable, "-c", "import sys; from ampcheck.cli import main; sys.exit(main())", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A project whose gate has failed, and its two bundles."""
    path = tmp_path_factory.mktemp("project")
    (path / "tests").mkdir()
    (path / "tests" / "test_amp.py").write_text(PROJECT)
    (path / "pytest.ini").write_text("[pytest]\nampcheck_json = report.json\naddopts = -p no:randomly\n")
    program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["--ampcheck", "--ampcheck-evidence=kept", "--ampcheck-budget=1", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-c", program, *options], cwd=path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert [line.split()[1].startswith("kept/tests-test_amp.py-net-") for line in done.stdout.splitlines() if line.startswith("evidence")] == [
        True, True
    ]  # fmt: skip
    return path, sorted((path / "kept").iterdir())


def test_a_bundle_is_shown_without_running_anything(recorded, capsys):
    _, (bundle, _) = recorded
    assert main(["replay", str(bundle), "--show"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "evidence  tests/test_amp.py::net[a b] [cpu], call 3",
        "because   the loss is not finite",
        "module    0 (Linear) is the first to return what is not finite, in float16; its input is",
        "batch     not held: left out: data of the training stay here unless --ampcheck-evidence-batch",
        "scale     2^8, 2^8, 2^8 (skipped), 2^7",
    ):
        assert line in shown


def test_the_step_goes_wrong_again_until_it_is_mended(recorded):
    path, bundles = recorded
    report = (path / "report.json").read_bytes()
    done = ampcheck(path, "replay", str(bundles[0]))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "REPRODUCED" in done.stdout
    assert "replayed  call 3" in done.stdout
    assert "step skipped" in done.stdout.partition("replayed")[2]
    source = path / "tests" / "test_amp.py"
    source.write_text(PROJECT.replace("BROKEN = True", "BROKEN = False"))
    try:
        done = ampcheck(path, "replay", str(bundles[1]))
    finally:
        source.write_text(PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT REPRODUCED: the call goes well now" in done.stdout
    assert (path / "report.json").read_bytes() == report, "a replay is no session: it leaves reports alone"


def test_another_contract_can_be_named(recorded, capsys):
    path, (bundle, _) = recorded
    done = ampcheck(path, "replay", str(bundle), "--contract", "tests/test_amp.py::net")
    assert done.returncode == 2
    assert "there are: tests/test_amp.py::net[a b], tests/test_amp.py::net[x::y[z]]" in done.stderr
    assert ampcheck(path, "replay", str(bundle), "--contract", "tests/test_amp.py::net[x::y[z]]").returncode == 1
    assert main(["replay", str(bundle), "--device", "xpu"]) == 2
    assert "there is no xpu device" in capsys.readouterr().err


def test_a_project_that_cannot_be_collected_is_told_in_pytests_words(recorded, tmp_path):
    _, (bundle, _) = recorded
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_amp.py").write_text("import no_such_module\n")
    done = ampcheck(tmp_path, "replay", str(bundle))
    assert done.returncode == 2
    assert "No module named 'no_such_module'" in done.stderr
    assert "Traceback (most recent call last)" not in done.stderr.partition("pytest says")[0]


def test_a_bundle_names_a_file_of_the_project_and_no_other(recorded, tmp_path, monkeypatch, capsys):
    _, (path, _) = recorded
    bundle = file.read(path)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    trap = "open('imported', 'w').close()\n"
    (tmp_path / "evil.py").write_text(trap)
    (project / "link.py").symlink_to(tmp_path / "evil.py")
    for contract in (
        "../evil.py::net",
        f"{tmp_path}/evil.py::net",
        "link.py::net",
        "-pevil::net",
        "@evil::x",
        "",
        "evil.py",
        "nowhere.py::net",
    ):
        torch.save({**bundle, "contract": contract}, "x.pt")
        assert main(["replay", "x.pt"]) == 2
        assert "is not in a file under the current directory" in capsys.readouterr().err
    assert not (project / "imported").exists()


def test_what_a_bundle_says_cannot_drive_the_terminal(recorded, tmp_path, capsys):
    _, (path, _) = recorded
    evil = "\x1b[2J\x1b]0;owned\x07::error::x\r\n" + "x" * 10_000
    bundle = file.read(path)
    hostile = {
        **bundle, "contract": evil, "device": evil, "why": [evil, 3, None], "environment": {evil: evil}, "scale": [{"scale": evil}, 3],
        "steps": [{"call": evil, "norm": evil, "scale": evil, "taken": evil}, evil, {"taken": []}, {"call": 10**400, "norm": 10**400, "scale": 10**400}], "findings": [{"id": evil, "seen": evil}, 3],
        "judged": {"returned": {evil: evil}, "raised": evil}, "first_nonfinite": {"op": evil, "line": evil},
        "first_module": {"module": evil, "kind": evil}, "states": {"kept": True, "bytes": evil, "reason": evil},
        "batch": {"kept": True, "tensors": [evil, 3, torch.ones(2)], "bytes": evil},
    }  # fmt: skip
    torch.save(hostile, tmp_path / "x.pt")
    assert main(["replay", str(tmp_path / "x.pt"), "--show"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert not any(line.startswith("::") for line in shown.splitlines())
    assert max(map(len, shown.splitlines())) < 2500


def test_a_payload_is_refused_at_the_command_too(tmp_path, capsys):
    class Payload:
        def __reduce__(self):
            return open, (str(tmp_path / "pwned"), "w")

    torch.save({"format": file.FORMAT, "version": 1, "contract": Payload()}, tmp_path / "x.pt")
    assert main(["replay", str(tmp_path / "x.pt")]) == 2
    assert "refused: it holds objects other than tensors and plain data, and nothing of it was run" in capsys.readouterr().err
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--ampcheck-evidence-batch=1MiB", "does nothing without --ampcheck-evidence DIR"),
        ("--ampcheck-evidence-batch=0", "is not a size from 1"),
        ("--ampcheck-evidence-batch=-1", "is not a size from 1"),
        ("--ampcheck-evidence-batch=all", "is not a size from 1"),
        ("--ampcheck-evidence-batch=9999GiB", "is not a size from 1"),
    ],
)
def test_a_cap_that_is_none_is_an_error(project, option, message):
    project.write("@ampcheck.contract(devices='cpu')\ndef net():\n    return {}\n")
    result = project.judge(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}*"])


@pytest.mark.parametrize(
    ("text", "size"), [("10", 10), ("1k", 1024), ("16MiB", 16 << 20), ("0.5 GiB", 512 << 20), ("3kb", 3072)]
)
def test_sizes(project, text, size):
    project.ini(f"ampcheck_evidence = kept\nampcheck_evidence_batch = {text}")
    from ampcheck.config import settings_of

    settings = settings_of(project.pytester.parseconfig("--ampcheck"))
    assert settings.evidence_batch == size
    assert settings.evidence == project.path / "kept"
