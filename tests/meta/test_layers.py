"""The layers of the package, as imports: each module may use only what stands before it."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(importlib.util.find_spec("ampcheck").submodule_search_locations[0])
#: Top-level modules and folders, lowest first; those of one row do not know each other.
LAYERS = [
    {"errors", "findings"},
    {"registry"},
    {"contract"},
    {"config"},
    {"_compat", "facts", "optimizer_formulas", "strategies"},
    {"scaler"},
    {"trace"},
    {"policy"},
    {"evidence"},
    {"scenarios"},
    {"checks"},
    {"reference"},
    {"verdicts", "profile", "baseline"},
    {"bundle"},
    {"runner"},
    {"report"},
    {"session"},
    {"plugin", "cli", "nox"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
#: The one upward step: the registry finds the checks by listing their folder.
ALLOWED = {("registry", "checks")}
#: Modules that must work, or be judged, without torch.
TORCH_FREE = [
    "errors",
    "findings",
    "registry",
    "contract",
    "config",
    "evidence",
    "profile",
    "baseline",
    "checks",
    "report",
    "cli",
    "nox",
    "plugin",
    "scaler.model",
]

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, function bodies included."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from run_time_nodes(other)
            continue
        yield child
        yield from run_time_nodes(child)


def imports(source: str, package: str) -> set[str]:
    """Full names of all that the source imports; `package` is where it stands, for relative imports."""
    found: set[str] = set()
    for node in run_time_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (
                importlib.util.resolve_name("." * node.level + (node.module or ""), package) if node.level else str(node.module)
            )
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def uses(path: Path) -> set[str]:
    """The top-level modules and folders of ampcheck that a module imports; "" is the package itself."""
    package = ".".join(["ampcheck", *path.relative_to(PACKAGE).parent.parts])
    return {
        name.split(".")[1]
        for name in imports(path.read_text("utf-8"), package)
        if name.split(".")[0] == "ampcheck" and "." in name
    }


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_each_module_imports_only_lower_layers(path: Path) -> None:
    own = name_of(path).split(".")[0]
    if own == "__init__":
        assert uses(path) == set(), "the package itself is lazy: it imports nothing before it is asked"
        return
    assert own in RANK, f"give {own} a layer in {Path(__file__).name}"
    for used in uses(path) - {own}:
        assert used in RANK, f"{name_of(path)} imports ampcheck.{used}, which has no layer"
        assert RANK[used] < RANK[own] or (own, used) in ALLOWED, f"{name_of(path)} must not import ampcheck.{used}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from ampcheck import runner", {"ampcheck.runner"}),
        ("import ampcheck.runner as r", {"ampcheck.runner"}),
        ("def f():\n    from ..checks.order import clip", {"ampcheck.checks.order.clip"}),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import json", {"json"}),
    ],
)
def test_the_reader_of_imports_sees(source: str, expected: set[str]) -> None:
    assert imports(source, "ampcheck.trace") == expected


@pytest.mark.parametrize("path", [p for p in MODULES if name_of(p).startswith("checks")], ids=name_of)
def test_checks_judge_evidence_and_never_touch_torch(path: Path) -> None:
    assert not {name for name in imports(path.read_text("utf-8"), "ampcheck.checks") if name.split(".")[0] == "torch"}


@pytest.mark.parametrize("name", [n for n in TORCH_FREE if importlib.util.find_spec(f"ampcheck.{n}")])
def test_imports_without_torch(name: str) -> None:
    """In a child, at its end: nothing heavy came in by the back door."""
    program = (
        "import importlib, pkgutil, sys\n"
        f"module = importlib.import_module('ampcheck.{name}')\n"
        "for inner in pkgutil.iter_modules(getattr(module, '__path__', [])):\n"
        f"    importlib.import_module('ampcheck.{name}.' + inner.name)\n"
        "print(*sorted({'torch', 'numpy', 'hypothesis'} & set(sys.modules)))"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout.strip()) == (0, ""), child.stderr
