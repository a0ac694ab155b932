"""Finds the training loop, the model and the optimizer of a project by reading its source. Nothing of it is imported or run."""

from __future__ import annotations

import ast
import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Function", "Model", "Project", "discover"]

#: Arguments whose source is longer than this are somebody's data.
LONGEST = 300
#: What a batch is called.
BATCH = ("batch", "data", "sample", "batch_data")
#: What is looked at: a project has fewer files, and files of its own are smaller.
MOST_FILES, LARGEST = 4000, 1 << 20
_BACKWARD = {"backward", "manual_backward"}
_SKIPPED = {"node_modules", "build", "dist", "site-packages", "__pycache__", "venv", "env"}
OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop"),
    *("Adagrad", "Adadelta", "Adamax", "Rprop", "Adafactor", "LBFGS"),
)
#: Layers that say what a model takes or gives: name -> which arguments.
LAYERS = ("Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "LSTM", "GRU", "LazyLinear")


@dataclass
class Function:
    """A function that trains.

    Args:
        module: dotted name to import it by; `root` is the directory that has to be on the path for it.
        owner: the class it is a method of, or None; `owner_parameters` are those of its `__init__`.
        resumes: whether that class has a `state_dict()` and a `load_state_dict(state)` of its own.
        parameters: name -> whether it has a default; without `self`.
        calls: names of attributes and functions that it calls.
        unpacks: how it takes a batch apart: names, or keys of a dict; empty where it does not say.
        by_key: whether `unpacks` are keys.
        iterates: the parameter that it loops over around the backward.
        shared: names of a model or optimizer that it takes from its module.
        settings: parameter -> attributes that it reads of it, where it reads nothing else: parsed arguments, a configuration.
        builds: whether it makes its own optimizer: then it is the whole training, not a step.
        parts: functions beside it that call backward, where it calls several of them one after the other: they are its step.
    """

    module: str
    root: Path
    file: Path
    line: int
    name: str
    owner: str | None = None
    owner_parameters: dict[str, bool] = field(default_factory=dict)
    resumes: bool = False
    parameters: dict[str, bool] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    unpacks: list[str] = field(default_factory=list)
    by_key: bool = False
    iterates: str | None = None
    shared: list[str] = field(default_factory=list)
    settings: dict[str, list[str]] = field(default_factory=dict)
    builds: bool = False
    parts: set[str] = field(default_factory=set)

    @property
    def score(self) -> int:
        """How much it looks like one optimizer step, of AMP."""
        words = self.name.lower()
        found = 4 + 2 * ("autocast" in self.calls) + 2 * bool({"unscale_", "update", "scale"} & self.calls)
        found += (
            2 * ("step" in self.calls) + ("zero_grad" in self.calls) + 2 * any(w in words for w in ("train", "step", "fit"))
        )
        return (
            found
            - 8 * self.builds
            - 4 * bool(self.shared)
            - 6 * ("test" in self.file.as_posix())
            - 2 * (self.iterates is not None)
        )


@dataclass
class Model:
    """A class derived from `torch.nn.Module`.

    Args:
        parameters: of `__init__`: name -> its default if that is a literal, None if it is not, `...` if it has none.
        constants: literals of the module, by name.
        layers: (class, positional arguments), in order.
        inside: whether another model has one of it.
    """

    module: str
    root: Path
    name: str
    lightning: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    layers: list[tuple[str, list[ast.expr]]] = field(default_factory=list)
    inside: bool = False

    def sizes(self, made: str) -> list[tuple[str, list[Any]]]:
        """The layers with their sizes, `...` where they are no literals.

        Args:
            made: source of the arguments that the model is made with, such as `128, classes=10`.
        """
        names = {**self.constants, **self.parameters}
        with contextlib.suppress(SyntaxError):
            call = ast.parse(f"f({made})", mode="eval").body
            assert isinstance(call, ast.Call)
            names.update({n: _literal(a, {}) for n, a in zip(self.parameters, call.args, strict=False)})
            names.update({k.arg: _literal(k.value, {}) for k in call.keywords if k.arg})
        return [(kind, [_literal(a, names) for a in arguments]) for kind, arguments in self.layers]


@dataclass
class Project:
    """What was found. `made` has, for each class, the source of the arguments it is made with somewhere, if they are literals."""

    root: Path
    functions: list[Function] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)
    optimizers: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    criteria: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    scaler: bool = False
    scripts: list[Path] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)


def discover(root: Path) -> Project:
    """Read a project.

    Args:
        root: its directory.
    """
    project = Project(root)
    trees = list(_trees(project))
    for path, tree in trees:
        with _unread(project, path):
            _Reader(project, path, tree).read()
    names = {model.name for model in project.models}
    while True:  # a class derived from one that is a model is a model
        more = [c for path, tree in trees for c in _classes(project, path, tree, names) if c.name not in names]
        if not more:
            break
        project.models += more
        names |= {model.name for model in more}
    for _, tree in trees:
        _note_making(project, tree, names)
    parts = {(f.file, f.owner, name) for f in project.functions if not f.builds for name in f.parts}
    project.functions = [f for f in project.functions if (f.file, f.owner, f.name) not in parts]
    project.functions.sort(key=lambda f: (-f.score, f.file, f.line))
    return project


def _trees(project: Project) -> Iterator[tuple[Path, ast.Module]]:
    seen = 0
    for folder, folders, files in os.walk(project.root):  # links are not followed
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f not in _SKIPPED and not Path(folder, f, "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            path = Path(folder, name)
            if not name.endswith(".py") or path.is_symlink():
                continue
            seen += 1
            if seen > MOST_FILES:
                return
            tree = _parse(path)
            if tree is None:
                project.unread.append(path)
            else:
                yield path, tree


@contextlib.contextmanager
def _unread(project: Project, path: Path) -> Iterator[None]:
    try:
        yield
    except RecursionError:  # nested as no person nests
        project.unread.append(path)


def _parse(path: Path) -> ast.Module | None:
    try:
        if path.stat().st_size > LARGEST:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody's file
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def importable(path: Path, project: Path) -> tuple[str, Path]:
    """The dotted name of a file, and the directory that has to be on the path: the one above its outermost package."""
    parts, folder = [path.stem] if path.stem != "__init__" else [], path.parent
    while folder != project and (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    while folder not in (project, project / "src") and project in folder.parents:  # packages without an __init__.py
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _literal(node: ast.AST, names: dict[str, Any]) -> Any:
    """The value of a literal or of a name of one; `...` where it is neither."""
    if isinstance(node, ast.Name):
        return names.get(node.id, ...)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr | None]:
    """Name -> default, of all parameters that can be given by name."""
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(a.defaults)) + list(a.defaults)
    found = {p.arg: d for p, d in zip(positional, defaults, strict=True)}
    found.update({p.arg: d for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)})
    return found


class _Reader(ast.NodeVisitor):
    """Takes one file in."""

    def __init__(self, project: Project, path: Path, tree: ast.Module) -> None:
        self.project, self.path, self.tree = project, path, tree
        self.module, self.root = importable(path, project.root)
        self.owner: ast.ClassDef | None = None
        self.beside: dict[ast.ClassDef | None, dict[str, set[str]]] = {}
        self.top = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}

    def read(self) -> None:
        self.project.models += _classes(self.project, self.path, self.tree, {"Module", "LightningModule"})
        self.visit(self.tree)
        loose = [n for n in self.tree.body if isinstance(n, (ast.For, ast.While, ast.With, ast.Expr))]
        if any(isinstance(c, ast.Call) and _called(c) == "backward" for n in loose for c in ast.walk(n)):
            self.project.scripts.append(self.path)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.owner = self.owner, node
        self.generic_visit(node)
        self.owner = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _called(node)
        if name == "GradScaler":
            self.project.scaler = True
        elif name in OPTIMIZERS and node.args:
            literal = {k.arg: _literal(k.value, {}) for k in node.keywords if k.arg}
            self.project.optimizers.append((name, {k: v for k, v in literal.items() if v is not ...}))
        elif name.endswith("Loss") and name[:1].isupper() and name not in self.project.criteria:
            self.project.criteria.append(name)
        self.generic_visit(node)

    def _function(self, node: ast.FunctionDef) -> None:
        inner = {id(n) for f in ast.walk(node) if isinstance(f, ast.FunctionDef) and f is not node for n in ast.walk(f)}
        own = [n for n in ast.walk(node) if id(n) not in inner]
        calls = {_called(n) for n in own if isinstance(n, ast.Call)}
        parts = {} if calls & _BACKWARD else self._parts(own)
        if not (calls & _BACKWARD or len(parts) > 1) or node.name in ("backward", "forward"):
            return
        calls.update(*parts.values())
        parameters = parameters_of(node)
        function = Function(self.module, self.root, self.path, node.lineno, node.name, calls=calls, parts=set(parts))
        if self.owner is not None and next(iter(parameters), "") == "self":
            function.owner = self.owner.name
            parameters.pop("self")
            methods = {n.name: parameters_of(n) for n in self.owner.body if isinstance(n, ast.FunctionDef)}
            function.owner_parameters = {k: d is not None for k, d in methods.get("__init__", {}).items() if k != "self"}
            needed = [sum(d is None for d in methods.get(n, {}).values()) for n in ("state_dict", "load_state_dict")]
            function.resumes = needed == [1, 2]  # self, and the state
        function.parameters = {name: default is not None for name, default in parameters.items()}
        function.builds = any(name in OPTIMIZERS or name == "configure_optimizers" for name in calls)
        assigned = {n.id for n in own if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        used = {n.id for n in own if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        words = ("model", "net", "optimizer", "opt", "scaler")
        function.shared = sorted(n for n in used & self.top - assigned - parameters.keys() if n.lower() in words)
        reads = [(n.value.id, n.attr) for n in own if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
        for name in parameters:
            found = list(dict.fromkeys(attribute for owner, attribute in reads if owner == name))
            uses = sum(isinstance(n, ast.Name) and n.id == name for n in own)
            if found and uses == sum(owner == name for owner, _ in reads):
                function.settings[name] = sorted(found)
        _batch(function, own)
        self.project.functions.append(function)

    def _parts(self, own: list[ast.AST]) -> dict[str, set[str]]:
        """The functions beside it that call backward and that it calls itself, not in a loop: name -> what they call."""
        if self.owner not in self.beside:
            functions = [f for f in (self.owner or self.tree).body if isinstance(f, ast.FunctionDef)]
            calls = {f.name: {_called(n) for n in ast.walk(f) if isinstance(n, ast.Call)} for f in functions}
            self.beside[self.owner] = {name: names for name, names in calls.items() if names & _BACKWARD}
        if len(self.beside[self.owner]) < 2:
            return {}
        repeated = {id(n) for loop in own if isinstance(loop, (ast.For, ast.While)) for n in ast.walk(loop)}
        called = {_called(n) for n in own if isinstance(n, ast.Call) and id(n) not in repeated}
        return {name: names for name, names in self.beside[self.owner].items() if name in called}


def _batch(function: Function, own: list[ast.AST]) -> None:
    """How the function comes by its batch, and takes it apart."""
    for node in own:
        if isinstance(node, ast.For) and any(isinstance(c, ast.Call) and "backward" in _called(c) for c in ast.walk(node)):
            over, target = node.iter, node.target
            while isinstance(over, ast.Call) and over.args:  # enumerate(loader), tqdm(loader)
                if _called(over) == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                    target = target.elts[1]
                over = over.args[0]
            if isinstance(over, ast.Name) and over.id in function.parameters:
                function.iterates = over.id
            if isinstance(target, ast.Tuple):
                function.unpacks = [e.id for e in target.elts if isinstance(e, ast.Name)]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in BATCH:
            target = node.targets[0]
            if isinstance(target, ast.Tuple):
                function.unpacks = [e.id for e in target.elts if isinstance(e, ast.Name)]
    found = [
        (n.lineno, n.col_offset, n.slice.value)
        for n in own
        if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id in BATCH
        and isinstance(n.slice, ast.Constant) and isinstance(n.slice.value, str)
    ]  # fmt: skip
    keys = [key for *_, key in sorted(found)]
    if keys and not function.unpacks:
        function.unpacks, function.by_key = list(dict.fromkeys(keys)), True


def _classes(project: Project, path: Path, tree: ast.Module, bases: set[str]) -> list[Model]:
    """The classes at the top of a file that derive from one of these."""
    module, root = importable(path, project.root)
    constants = {
        t.id: value
        for n in tree.body if isinstance(n, ast.Assign)
        for t in n.targets if isinstance(t, ast.Name) and (value := _literal(n.value, {})) is not ...
    }  # fmt: skip
    found = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        own = {b.attr if isinstance(b, ast.Attribute) else b.id if isinstance(b, ast.Name) else "" for b in node.bases}
        if not own & bases or "test" in path.relative_to(project.root).as_posix():
            continue
        model = Model(module, root, node.name, lightning="LightningModule" in own, constants=constants)
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        for name, default in parameters_of(init).items() if init is not None else ():
            value = ... if default is None else _literal(default, constants)
            if name != "self":
                model.parameters[name] = None if value is ... and default is not None else value
        model.layers = [(_called(n), n.args) for n in ast.walk(node) if isinstance(n, ast.Call) and _called(n) in LAYERS]
        model.layers.sort(key=lambda layer: layer[1][0].lineno if layer[1] else 0)
        found.append(model)
    return found


def _note_making(project: Project, tree: ast.Module, names: set[str]) -> None:
    """With which arguments models are made: inside other models, and elsewhere."""
    inner = {id(n) for c in tree.body if isinstance(c, ast.ClassDef) and c.name in names for n in ast.walk(c)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) not in names:
            continue
        name = _called(node)
        if id(node) in inner:
            for model in project.models:
                model.inside |= model.name == name
            continue
        given = [*node.args, *(k.value for k in node.keywords)]
        if all(_literal(a, {}) is not ... for a in given) and all(k.arg for k in node.keywords):
            arguments = [ast.unparse(a) for a in node.args] + [f"{k.arg}={ast.unparse(k.value)}" for k in node.keywords]
            if len(source := ", ".join(arguments)) <= LONGEST:
                project.made.setdefault(name, source)
