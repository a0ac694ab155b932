"""The gate on a repository as people have them: a base commit, four refactors that break something, and one that does not.

Real steps are judged here, in a pytest of their own.
"""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\ntestpaths = ["tests"]\n',
    "src/mylib/__init__.py": "",
    "src/mylib/model.py": """import torch


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.fc2 = torch.nn.Linear(32, 32)

    def forward(self, x):
        return self.fc2(self.norm(self.fc1(x)).relu())


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = torch.nn.Linear(32, 4)

    def forward(self, x):
        x = self.encoder(x)
        with torch.autocast("cpu", enabled=False):
            return self.head(x.to(self.head.weight.dtype))
""",
    "src/mylib/train.py": """import torch


def train_one_step(model, optimizer, scaler, x, y):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = torch.nn.functional.mse_loss(model(x).float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()
""",
    "tests/test_amp.py": """import torch
import ampcheck
from mylib.model import Model
from mylib.train import train_one_step


@ampcheck.contract
def mlp():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = torch.randn(8, 16), torch.randn(8, 4)

    def step():
        return train_one_step(model, optimizer, scaler, x, y)

    return step
""",
}
HALF_NORM = """

class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight
"""

Edit = Callable[[Path], None]


def replaced(file: str, *pairs: tuple[str, str], more: str = "") -> Edit:
    def edit(folder: Path) -> None:
        path = folder / file
        text = path.read_text("utf-8")
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text + more, "utf-8")

    return edit


CLIP, UNSCALE = "    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n", "    scaler.unscale_(optimizer)\n"
ISLAND = '        with torch.autocast("cpu", enabled=False):\n            return self.head(x.to(self.head.weight.dtype))\n'
MODEL, TRAIN = "src/mylib/model.py", "src/mylib/train.py"
REFACTORS: dict[str, tuple[Edit, list[str]]] = {
    "norm replaced": (
        replaced(MODEL, ("torch.nn.LayerNorm(32)", "Norm(32)"), more=HALF_NORM),
        ["new AMP303 is new: * src/mylib/model.py:3?", "info encoder.norm: LayerNorm -> Norm src/mylib/model.py:12"],
    ),
    "clip moved": (
        replaced(TRAIN, (UNSCALE + CLIP, CLIP + UNSCALE)),
        ["worse unscale_ moved after clip src/mylib/train.py:9", "new AMP102 is new: * src/mylib/train.py:9"],
    ),
    "model halved": (
        replaced("tests/test_amp.py", ("Model()", "Model().half()")),
        [
            "worse the parameters of 4 modules: float32 -> float16: encoder.fc1, encoder.fc2, encoder.norm, head src/mylib/model.py:12",
            "new AMP307 is new: *",
        ],
    ),
    "island removed": (
        replaced(MODEL, (ISLAND, "        return self.head(x)\n")),
        ["worse 1 matmul entered 16 bits, an island of full precision before (float32 -> float16): head src/mylib/model.py:23"],
    ),
    "rename": (replaced(MODEL, ("encoder", "body"), ("fc1", "proj"), ("norm", "ln"), ("head", "top")), []),
}  # fmt: skip


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments], cwd=folder, check=True, capture_output=True
    )


def judge(folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--ampcheck",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        "-q",
        "--ampcheck-json=report.json",
    ]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, json.loads((folder / "report.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    (folder / ".gitignore").write_text("report.json\n__pycache__\n.pytest_cache\n")
    git(folder, "init", "-q", "-b", "main")
    code, said, _ = judge(folder, "--ampcheck-update-baseline")
    assert code == 0, said
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    return folder


@pytest.mark.parametrize("name", REFACTORS)
def test_the_gate_explains_each_refactor_in_a_line_with_its_place(repository: Path, name: str) -> None:
    edit, expected = REFACTORS[name]
    git(repository, "checkout", "-q", ".")
    edit(repository)
    code, said, report = judge(repository)
    lines = [f"{c['verdict']} {c['text']} {_place(c)}".strip() for c in report["changes"]]
    gate = "FAILED tests/test_amp.py::mlp[cpu-baseline]"
    if not expected:
        assert code == 0, said
        assert {c["verdict"] for c in report["changes"]} == {"info"}
        assert lines[0].startswith("info renamed: ")
        return
    assert code == 1 and gate in said
    for pattern in expected:
        assert any(fnmatch.fnmatchcase(line, pattern.replace("[", "[[]")) for line in lines), (pattern, lines)


def _place(change: dict[str, Any]) -> str:
    where = change["location"]
    return f"{where['file']}:{where['line']}" if where else ""


def test_against_the_base_commit_itself(repository: Path) -> None:
    git(repository, "checkout", "-q", ".")
    REFACTORS["clip moved"][0](repository)
    code, said, report = judge(repository, "--ampcheck-against", "main", "-k", "baseline")
    assert code == 1, said
    assert [c["text"] for c in report["changes"] if c["verdict"] == "worse"] == ["unscale_ moved after clip"]
    assert report["baseline"]["revision"].startswith("main (")
