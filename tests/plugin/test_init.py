"""`ampcheck init`: what it makes of projects as people write them, and of what nobody should."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from ampcheck.cli import main
from ampcheck.cli.discover import discover

TRAIN = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


class Net(nn.Module):
    def __init__(self, width=16, num_classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3)
        self.block = Block(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.head(self.block(self.stem(x)).mean((2, 3)))


def train_one_epoch(model, loader, optimizer, scaler, device, epoch=0, max_norm=1.0):
    criterion = nn.CrossEntropyLoss()
    for i, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # here
        scaler.step(optimizer)
        scaler.update()
    return loss.detach()


if __name__ == "__main__":
    model = Net(width=8, num_classes=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_one_epoch(model, [], optimizer, torch.amp.GradScaler("cuda"), "cuda")
"""
TRAINER = """
import torch
import torch.nn.functional as F

class Trainer:
    def __init__(self, model, optimizer, cfg, clip=1.0):
        self.model, self.optimizer = model, optimizer

    def train_step(self, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(self.model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(here, *arguments, **files):
    """The contract for a project of these files, without its docstring and comments; it must be Python."""
    for name, text in files.items():
        (here / f"{name}.py").write_text(text)
    assert main(["init", *arguments]) == 0
    text = (here / "tests" / "test_amp.py").read_text("utf-8")
    ast.parse(text)
    return text


def test_a_loop_over_a_loader(here, capsys):
    text = written(here, train=TRAIN)
    for line in (
        "from train import Net, train_one_epoch",
        "model = Net(width=8, num_classes=4).to(amp_device)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
        "scaler = torch.amp.GradScaler(amp_device)",
        "inputs = torch.randn(8, 3, 32, 32, device=amp_device)  # TODO",
        "targets = torch.randint(4, (8,), device=amp_device)  # TODO",
        "batch = (inputs, targets)",
        "return train_one_epoch(model=model, loader=[batch], optimizer=optimizer, scaler=scaler, device=amp_device)",
    ):
        assert line in text
    assert "NotImplementedError" not in text
    shown = capsys.readouterr().out
    assert "found    train_one_epoch in train.py:" in shown
    assert "with 2 TODO" in shown


def test_a_method_a_package_and_what_cannot_be_told(here):
    package = here / "src" / "lib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "engine.py").write_text(TRAINER)
    (package / "net.py").write_text(
        "from torch import nn\n\nclass LM(nn.Module):\n    def __init__(self, vocab_size, dim=32):\n"
        "        self.emb = nn.Embedding(vocab_size, dim)\n        self.out = nn.Linear(dim, vocab_size)\n"
    )
    text = written(here)
    for line in (
        'sys.path.insert(0, str(Path(__file__).resolve().parent.joinpath("../src").resolve()))',
        "from lib.engine import Trainer",
        "from lib.net import LM",
        "model = LM(vocab_size=100).to(amp_device)",
        "inputs = torch.randint(100, (8, 16), device=amp_device)",
        'batch = {"input_ids": inputs, "labels": targets}',
        "trainer = Trainer(model=model, optimizer=optimizer, cfg=...)  # TODO: cfg",
        "return trainer.train_step(batch=batch)",
        'raise NotImplementedError("test_amp.py is not finished: what Trainer() takes for cfg")',
    ):
        assert line in text
    assert "GradScaler" not in text, "a loop without a scaler needs none"


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("nothing", "print('hello')\n", "no function with a backward() was found"),
        ("script", "import torch\nloss = torch.ones(())\nfor _ in range(3):\n    loss.backward()\n", "script.py trains when it is imported"),
        (
            "whole",
            "def main():\n    opt = torch.optim.AdamW(net.parameters())\n    for x in data:\n        net(x).backward()\n        opt.step()\n",
            "whole.py:1 main() makes its own optimizer, so it is the whole training",
        ),
        (
            "shared",
            "model = make()\noptimizer = make()\n\ndef train(batch):\n    model(batch).backward()\n    optimizer.step()\n",
            "shared.py:4 train() uses model, optimizer of its module, which builds would share",
        ),
        ("odd", "def step(cfg, gizmo):\n    cfg.loss.backward()\n", "what step() takes for gizmo"),
    ],
)  # fmt: skip
def test_what_needs_a_person_is_said_and_fails_until_it_is_done(here, name, source, message):
    text = written(here, **{name: source})
    assert message in text
    namespace = {"__file__": str(here / "tests" / "test_amp.py")}
    exec(compile(text, "test_amp.py", "exec"), namespace)
    with pytest.raises(NotImplementedError, match="is not finished"):
        namespace["training_step"]("cpu")


def test_what_the_project_makes_itself_is_not_made_twice(here):
    text = written(
        here,
        trainer="from torch import nn\n\nclass MLP(nn.Module):\n    def __init__(self, hidden=8):\n        self.l = nn.Linear(7, hidden)\n\n"
        "class Trainer:\n    def __init__(self, model, use_amp=False, lr=0.1):\n        self.model, self.scaler = model, GradScaler()\n"
        "        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)\n\n"
        "    def training_step(self, x, y):\n        self.scaler.scale(F.mse_loss(self.model(x), y)).backward()\n"
        "        self.scaler.step(self.optimizer)\n",
    )
    assert "trainer = Trainer(model=model, use_amp=True)" in text
    assert "return trainer.training_step(x=inputs, y=targets)" in text
    assert not any(f"{name} = " in text for name in ("optimizer", "scaler", "batch"))


def test_a_trainer_that_makes_its_own_model_is_given_none(here):
    text = written(
        here,
        trainer="from torch import nn\n\nclass MLP(nn.Module):\n    def __init__(self, layout):\n        self.l = nn.Linear(7, layout)\n\n"
        "class Trainer:\n    def __init__(self, config):\n        self.model = MLP(config.layout)\n"
        "        self.optimizer = torch.optim.Adam(self.model.parameters())\n\n"
        "    def training_step(self, x, y):\n        F.mse_loss(self.model(x), y).backward()\n        self.optimizer.step()\n",
    )
    assert "trainer = Trainer(config=...)  # TODO: config" in text
    assert "return trainer.training_step(x=inputs, y=targets)" in text
    assert "model = " not in text
    assert "layout" not in text, "nothing is asked about a model that is not made here"


@pytest.mark.parametrize(
    ("methods", "last"),
    [
        (
            "    def state_dict(self):\n        return {}\n\n    def load_state_dict(self, state, strict=True):\n        pass\n",
            "return ampcheck.Training(step, state_dict=trainer.state_dict, load_state_dict=trainer.load_state_dict)",
        ),
        ("    def state_dict(self):\n        return {}\n", "return step"),
        (
            "    def state_dict(self, which):\n        return {}\n\n    def load_state_dict(self, state):\n        pass\n",
            "return step",
        ),
    ],
)
def test_a_checkpoint_that_the_trainer_makes_is_judged_too(here, methods, last):
    text = written(here, trainer=TRAINER + "\n" + methods)
    assert text.rstrip().endswith(last)


def test_parsed_arguments_are_told_by_what_is_read_of_them(here):
    source = "def train(args, model, batch):\n    model(batch).backward()\n    if args.log_interval:\n        print({})\n"
    text = written(here, train=source.format("args.use_amp"))
    assert "args=SimpleNamespace(log_interval=1, use_amp=True)" in text
    assert "what train() takes for args" not in text
    text = written(here, "--force", train=source.format("args.flux"))
    assert "args=SimpleNamespace(flux=..., log_interval=1)" in text
    assert "the values of args.flux" in text
    text = written(here, "--force", train=source.format("args"))
    assert "args=...)" in text.replace("args=..., ", "args=...)")
    assert "what train() takes for args" in text


def test_lightning(here):
    text = written(
        here,
        lit="import lightning as L\n\nclass Lit(L.LightningModule):\n    def __init__(self, hidden=4):\n        self.l = nn.Linear(7, hidden)\n"
        "    def training_step(self, batch, i):\n        return self.l(batch[0]).sum()\n",
    )
    assert 'precision="16-mixed"' in text
    assert "torch.randn(8, 7, device=amp_device)" in text
    assert "ampcheck.Training(lambda: trainer.fit(model, loader), calls=1, model=model)" in text


def test_the_function_that_is_most_of_an_amp_step_comes_first_and_the_others_are_told(here):
    other = "def helper(loss):\n    loss.backward()\n"
    text = written(here, a_first=other, train=TRAIN)
    assert "train_one_epoch(" in text
    assert "#   a_first.py:1 in helper" in text


GAN = """
class Trainer:
    def __init__(self, device="cpu"):
        self.scaler = torch.amp.GradScaler(device)

    def d_step(self, real):
        with torch.autocast("cpu"):
            loss = self.d(real).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt_d)
        self.opt_d.zero_grad()

    def g_step(self, z):
        with torch.autocast("cpu"):
            loss = self.d(self.g(z)).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt_g)
        self.opt_g.zero_grad()

    def both(self, real, z):
        self.d_step(real)
        self.g_step(z)
        self.scaler.update()

    def epoch(self, loader):
        for real, z in loader:
            self.d_step(real)
            self.g_step(z)
"""


def test_the_parts_of_a_step_are_not_the_step(here):
    """It calls no backward itself; what calls one of them, or all of them in a loop, is no step."""
    text = written(here, gan=GAN)
    assert "return trainer.both(real=..., z=...)" in text
    assert "Trainer.g_step" not in text
    assert "epoch" not in text


def test_a_file_that_is_there_is_kept(here, capsys):
    (here / "tests").mkdir()
    (here / "tests" / "test_amp.py").write_text("mine")
    assert main(["init"]) == 2
    assert "is there already; --force replaces it" in capsys.readouterr().err
    assert main(["init", "--stdout"]) == 0
    assert "@ampcheck.contract" in capsys.readouterr().out
    assert (here / "tests" / "test_amp.py").read_text() == "mine"
    assert main(["init", "--path", "amp/test_it.py"]) == 0
    assert (here / "amp" / "test_it.py").exists()
    assert main(["init", "--force"]) == 0
    assert "@ampcheck.contract" in (here / "tests" / "test_amp.py").read_text()


def test_nothing_of_the_project_is_imported_or_run(here):
    trap = "open('imported', 'w').close()\n"
    text = written(here, train=trap + TRAIN, conftest=trap, sitecustomize=trap, setup=trap, torch=trap, ampcheck=trap)
    assert "from train import" in text
    assert not (here / "imported").exists()


NAMES = [
    "a b",
    "my-train",
    "class",
    "2fast",
    "it's",
    'q"uote',
    "new\nline",
    "é",
    "x;import os",
    "{brace}",
    "$(touch pwned)",
    "back\\slash",
]


@pytest.mark.parametrize("name", NAMES)
def test_file_names_that_are_no_names_in_python(here, name):
    text = written(here, **{name: "def train(batch):\n    batch.backward()\n"})
    tree = ast.parse(text)
    assert [type(node).__name__ for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom))] == [
        "Expr", "Expr", "FunctionDef"
    ]  # fmt: skip
    contract = tree.body[-1]
    imports = [n for n in ast.walk(contract) if isinstance(n, ast.ImportFrom)]
    called = [
        n.args[0].value
        for n in ast.walk(contract)
        if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "import_module"
    ]
    assert called == [name] if not imports else [n.module for n in imports] == [name]


def test_source_that_nobody_should_write(here):
    (here / "binary.py").write_bytes(bytes(range(256)))
    (here / "old.py").write_text("print 'hello'\n")
    (here / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    (here / "deeper.py").write_text("x = " + "-" * 50_000 + "1")
    (here / "long.py").write_text("x = 1\n" * 300_000)
    (here / "loop.py").symlink_to(here / "loop.py")
    (here / "away").symlink_to("/")
    (here / "inner" / "site-packages").mkdir(parents=True)
    (here / "inner" / "site-packages" / "lib.py").write_text(TRAIN)
    (here / ".venv").mkdir()
    (here / ".venv" / "lib.py").write_text(TRAIN)
    (here / "own").mkdir()
    (here / "own" / "pyvenv.cfg").write_text("")
    (here / "own" / "lib.py").write_text(TRAIN)
    text = written(here, train=TRAIN)
    assert "from train import Net" in text
    project = discover(here)
    assert [f.file.name for f in project.functions] == ["train.py"]
    assert {path.name for path in project.unread} >= {"binary.py", "old.py", "long.py"}


def test_a_class_that_inherits_from_a_model_is_one(here):
    text = written(
        here,
        base="from torch import nn\n\nclass Base(nn.Module):\n    pass\n",
        net="from base import Base\n\nclass Derived(Base):\n    def __init__(self):\n        self.l = nn.Linear(5, 6)\n\n"
        "def train(model, x, y, optimizer):\n    F.mse_loss(model(x), y).backward()\n    optimizer.step()\n\nDerived()\n",
    )
    assert "model = Derived().to(amp_device)" in text
    assert "inputs = torch.randn(8, 5" in text
    assert "targets = torch.randn(8, 6" in text
    assert "train(model=model, x=inputs, y=targets, optimizer=optimizer)" in text


def test_what_it_writes_is_collected_and_judged(here):
    """The real thing: a project, `ampcheck init`, `pytest --ampcheck`, and the fault at its line."""
    written(here, train=TRAIN)
    command = [
        sys.executable,
        "-c",
        "import pytest, sys; sys.exit(pytest.main())",
        "--ampcheck",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    select = ["--ampcheck-select=AMP102,AMP103,AMP111", "--ampcheck-budget=20", "--ampcheck-device=cpu"]
    done = subprocess.run([*command, *select], cwd=here, capture_output=True, text=True, check=False)
    lines = TRAIN.splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith("# here"))
    assert f"train.py:{line} in train_one_epoch" in done.stdout, done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
