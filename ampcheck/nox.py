"""Sessions for the noxfile of a project that uses ampcheck: its contracts under several versions of torch.

    from ampcheck.nox import matrix

    matrix(torch=["2.4.1", "2.13.0"], install=["-e", "."], groups=["test"])

The Python that runs nox needs this package, but neither torch nor pytest: `pip install --no-deps ampcheck` beside nox will do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampcheck.errors import UsageError
from ampcheck.report.versions import read, table

if TYPE_CHECKING:
    import nox

__all__ = ["matrix"]

#: Says which torch a session would really judge.
INSTALLED = "import importlib.metadata as m; print(m.version('torch'))"


def matrix(
    torch: Sequence[str] | Mapping[str, str],
    *,
    install: Sequence[str] = ("-e", ".", "ampcheck"),
    groups: Sequence[str] = (),
    constraints: str | None = None,
    index_url: str | None = None,
    arguments: Sequence[str] = ("--ampcheck-only", "--ampcheck-require=judged"),
    reports: str = "ampcheck-reports",
    name: str = "ampcheck",
    python: str | None = None,
    backend: str | None = None,
    default: bool = True,
) -> None:
    """Add a session for each version of torch to this noxfile, and one that says what differs between them.

    `nox -s ampcheck` runs all of them and ends with the table; `nox -s "ampcheck(torch='2.4.1')"` runs one;
    `nox -s ampcheck -- tests/test_amp.py::resnet` hands what follows to pytest, for one contract or with further options.

    Args:
        torch: versions, such as `"2.4.1"`; or version -> Python, where an old torch needs an old Python.
        install: what pip (or uv) installs in each session beside torch: your project and ampcheck.
        groups: dependency groups of `pyproject.toml` that are installed too.
        constraints: a constraints file, relative to the noxfile. It must not pin torch to another version.
        index_url: the index that torch is taken from, such as PyTorch's own index of CPU wheels.
        arguments: arguments of pytest in every session: options, and paths if only some contracts are meant.
        reports: folder, relative to the noxfile, of a JSON report for each version and of `differences.md`.
        name: name of the sessions; the table's is this with `-differences` behind it.
        python: the interpreter for all sessions, such as `"3.12"`; the one that runs nox if `None`.
        backend: where sessions run: `"venv"`, `"uv"`, `"virtualenv"`; nox's own choice if `None`. With `"none"`, or under
            `nox --no-venv`, nothing is installed: only the version that is there can be judged, others are errors.
        default: whether bare `nox` runs them.

    Raises:
        UsageError: if there is no version, or one that is no version.
    """
    import nox

    pythons = dict(torch) if isinstance(torch, Mapping) else dict.fromkeys(torch, python)
    if isinstance(torch, str) or not pythons:
        raise UsageError("matrix(torch=) takes a list of versions, such as ['2.4.1', '2.13.0']")
    for version in pythons:
        if not version[:1].isdigit() or not version.replace(".", "").replace("+", "").isalnum():
            raise UsageError(f"matrix(torch=): {version!r} is no version of torch; write it as 2.13.0")
    folder = Path(reports)
    files = {version: folder / f"torch-{version}.json" for version in pythons}
    compare = f"{name}-differences"

    def judge(session: nox.Session, torch: str) -> None:
        """Judge the contracts under one version of torch."""
        report = files[torch]
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)  # an old report must not pass for the one of a session that ended early
        _then(session, compare)
        if session.virtualenv.is_sandboxed:
            wanted = f"torch=={torch}"
            if index_url is not None:
                session.install(wanted, "--index-url", index_url)
            session.install(wanted, *install, *_requirements(groups), *(("-c", constraints) if constraints else ()))
        own = "python" if session.virtualenv.is_sandboxed else sys.executable
        found = str(session.run(own, "-c", INSTALLED, silent=True, external=True)).strip()
        if found.partition("+")[0] != torch.partition("+")[0]:
            session.error(f"this session would judge torch {found}, not {torch}")
        session.run(own, "-m", "pytest", *arguments, f"--ampcheck-json={report}", *session.posargs, external=True)

    def differences(session: nox.Session) -> None:
        """Say what differs between the versions, from the reports that their sessions left."""
        documents = {version: read(file) for version, file in files.items()}
        if not any(documents.values()):
            session.error(f"there is no report in {folder}: run nox -s {name} first")
        lines = list(table(documents))
        (folder / "differences.md").write_text("\n".join([*lines, ""]), "utf-8")
        sys.stdout.write("\n".join([*lines, ""]))
        sys.stdout.flush()

    if len(set(pythons.values())) == 1:
        judging = nox.parametrize("torch", list(pythons))(judge)
        interpreter = next(iter(pythons.values()))
    else:
        judging = nox.parametrize("python,torch", [(found, version) for version, found in pythons.items()])(judge)
        interpreter = None
    nox.session(name=name, python=interpreter, venv_backend=backend, default=default)(judging)
    nox.session(name=compare, venv_backend="none", default=default)(differences)


def _then(session: nox.Session, target: str) -> None:
    """Let the table follow, even if this session fails."""
    try:
        session.notify(target)
    except ValueError:  # nox --parallel lets no session call another
        session.log(f"the table of differences: nox -s {target}")


def _requirements(groups: Sequence[str]) -> list[str]:
    """What the dependency groups ask for, as arguments that every version of pip and uv understands."""
    if not groups:
        return []
    import nox

    return list(nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), *groups))
