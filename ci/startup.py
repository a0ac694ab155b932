"""What the plugin costs somebody who does not use it: a child pytest with one empty test, with and without ampcheck.

    python ci/startup.py [PAIRS]

Pairs of children run one after the other, so that both see the same machine; the figures are ratios within one run.
Loaded modules are read in the child at its very exit: not at configure, and not during a test.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Packages that must not be loaded on our account.
HEAVY = ("torch", "numpy", "hypothesis", "jinja2", "matplotlib")
#: How many modules of ampcheck a run that does not ask for it may load.
MOST = 6
PLUGIN = ("-p", "ampcheck.plugin")

CHILD = """
import atexit, sys
@atexit.register
def report():
    print("MODULES", *sys.modules)
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def probe(folder: Path, *arguments: str) -> tuple[set[str], float]:
    """Run the child in `folder`, other plugins off. Returns the modules loaded at its exit and its wall seconds."""
    (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n", "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    start = time.perf_counter()
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - start
    (line,) = (line for line in child.stdout.splitlines() if line.startswith("MODULES"))
    return set(line.split()[1:]), seconds


def of(package: str, modules: set[str]) -> list[str]:
    """The modules that belong to a package."""
    return sorted(name for name in modules if name == package or name.startswith(f"{package}."))


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        probe(folder), probe(folder, *PLUGIN)  # compile and cache the sources
        measured = [(probe(folder), probe(folder, *PLUGIN)) for _ in range(pairs)]
    (bare, _), (ours, _) = measured[-1]
    ratios = [with_us / without for (_, without), (_, with_us) in measured]
    differences = [1000 * (with_us - without) for (_, without), (_, with_us) in measured]
    quarters = statistics.quantiles(ratios, n=4)
    print(f"start-up with / without the plugin, {pairs} pairs: median {statistics.median(ratios):.3f}", end="")
    print(f" (quartiles {quarters[0]:.3f} to {quarters[2]:.3f}), median difference {statistics.median(differences):+.1f} ms")
    print(f"modules at exit: {len(bare)} without, {len(ours)} with; more: {', '.join(sorted(ours - bare)) or 'none'}")
    heavy = [module for package in HEAVY for module in of(package, ours)]
    if heavy or len(of("ampcheck", ours)) > MOST:
        sys.exit(f"too much is loaded: {len(of('ampcheck', ours))} modules of ampcheck, {len(heavy)} of {', '.join(HEAVY)}")


if __name__ == "__main__":
    main()
