"""The jobs that gate a merge. Bare `nox` runs all but the matrix; `nox --no-venv` runs them in the active environment.

Each session makes an environment of its own unless `--no-venv` says to use the one that is there: torch is large, and
one copy is enough for most of them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml("pyproject.toml")
#: The first torch that is supported, one in the middle, the everyday one and the newest.
TORCH = ["2.4.1", "2.8.0", "2.13.0", "2.14.1"]
#: The one place where the everyday torch is pinned.
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
#: Two intra-op threads on a busy machine make small steps far slower than one.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PARALLEL = ["-n", "auto"]
REFERENCE = ["--ampcheck-reference", "--ampcheck-require=judged"]
#: What the matrix leaves: a report of the reference contracts for each torch.
REPORTS = ROOT / ".nox" / "reports"


def install(session: nox.Session, *groups: str, torch: str | None = None) -> None:
    """Install the package and some dependency groups, unless the session runs in the environment that is there."""
    if not session.virtualenv.is_sandboxed:
        return
    pin = [f"torch=={torch}"] if torch else ["-c", str(CONSTRAINTS)]
    session.install("-e", ".", *nox.project.dependency_groups(PYPROJECT, *groups), *pin)


def python(session: nox.Session, *arguments: str, interpreter: str | None = None, **env: str) -> None:
    """Run Python with one thread; without a session environment that is the Python which runs nox."""
    own = "python" if session.virtualenv.is_sandboxed else sys.executable
    session.run(interpreter or own, *arguments, env={**ONE_THREAD, **env}, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Rules and format; the CI templates against the schemas of their services, and the rules of safe workflows."""
    install(session, "lint")
    python(session, "-m", "ruff", "check", ".")
    python(session, "-m", "ruff", "format", "--check", ".")
    templates = {
        service: [str(path) for path in sorted((ROOT / "ci" / service).glob("*.yml"))] for service in ("github", "gitlab")
    }
    for service, kind in (("github", "github-workflows"), ("gitlab", "gitlab-ci")):
        python(session, "-m", "check_jsonschema", "--quiet", "--builtin-schema", f"vendor.{kind}", *templates[service])
    zizmor = "zizmor" if session.virtualenv.is_sandboxed else str(Path(sys.executable).with_name("zizmor"))
    rules = ["--quiet", "--offline", "--config", "ci/zizmor.yml", "--persona=pedantic"]
    session.run(zizmor, *rules, *templates["github"], external=True)


@nox.session
def types(session: nox.Session) -> None:
    """Strict types."""
    install(session, "types")
    python(session, "-m", "mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests; the whole suite has to reach the branch coverage that pyproject.toml asks for."""
    install(session, "test")
    python(session, "-m", "coverage", "erase")
    python(session, "-m", "coverage", "run", "-m", "pytest", *(session.posargs or PARALLEL))
    python(session, "-m", "coverage", "combine", "--quiet")
    partial = ["--fail-under=0"] if session.posargs else []
    python(session, "-m", "coverage", "report", *partial)


@nox.session
def ampcheck(session: nox.Session) -> None:
    """The main job: the contract suite judges the installed torch by the reference contracts."""
    install(session)
    python(session, "-m", "pytest", *REFERENCE, *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """The wheel, installed in an empty environment: import, entry point, type marker, data, the reference contracts."""
    here = Path(session.create_tmp()).resolve()
    shutil.rmtree(here, ignore_errors=True)
    python(session, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(here / "dist"), ".")
    (wheel,) = (here / "dist").glob("ampcheck-*.whl")
    python(session, "-m", "venv", str(here / "env"))
    empty = str(here / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    python(session, "-m", "pip", "install", "--quiet", "-c", str(CONSTRAINTS), str(wheel), interpreter=empty)
    (here / "pytest.ini").write_text("[pytest]\n", "utf-8")  # a project of its own: not the settings of this one
    with session.chdir(here):
        python(session, "-c", INSTALLED, str(ROOT / "ampcheck"), interpreter=empty)
        python(session, "-m", "pytest", *REFERENCE, interpreter=empty)


#: Runs where only the wheel is installed.
INSTALLED = """
import importlib.metadata, importlib.resources, pathlib, sys
import ampcheck
assert not pathlib.Path(ampcheck.__file__).is_relative_to(sys.argv[1]), ampcheck.__file__
assert ampcheck.__version__ == importlib.metadata.version("ampcheck")
assert [e.name for e in importlib.metadata.entry_points(group="pytest11") if e.value == "ampcheck.plugin"] == ["ampcheck"]
assert [e for e in importlib.metadata.entry_points(group="console_scripts") if e.name == "ampcheck"][0].load()
files = importlib.resources.files("ampcheck")
assert files.joinpath("py.typed").is_file()
assert [f for f in files.joinpath("facts").iterdir() if f.name.endswith(".json")], "the measured tables are in the wheel"
for name in ("schema/report-v1.json", "templates/report.html.jinja", "templates/report.css"):
    assert files.joinpath("report", name).is_file(), name
import ampcheck.nox
assert "torch" not in sys.modules
for name in ampcheck.__all__:
    getattr(ampcheck, name)
"""


@nox.session(default=False)
@nox.parametrize("torch", TORCH)
def matrix(session: nox.Session, torch: str) -> None:
    """Tests and reference contracts on each torch that is named above; not in the default run: it is heavy."""
    if not session.virtualenv.is_sandboxed:
        session.error("the matrix installs several versions of torch: run it without --no-venv")
    session.notify("differences")
    install(session, "test", torch=torch)
    python(session, "-m", "pytest", *(session.posargs or PARALLEL))
    python(session, "-m", "pytest", *REFERENCE, f"--ampcheck-json={REPORTS / torch}.json")


@nox.session(default=False, venv_backend="none")
def differences(session: nox.Session) -> None:
    """What differs between the reports that the matrix left, and what moved in the tables of what autocast does."""
    reports = [f"{torch}={REPORTS / torch}.json" for torch in TORCH]
    python(session, "-m", "ampcheck.report.versions", *reports)
    python(session, "ci/readme.py", "drift")
