"""A user's noxfile: real sessions in environments of their own, with two stand-ins for torch."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from ampcheck.errors import UsageError
from ampcheck.nox import matrix

#: Of a noxfile that a user is asked to write.
MOST_LINES = 15
NOXFILE = """
import nox

from ampcheck.nox import matrix

matrix(
    torch={torch},
    install={install},
    groups=["test"],
    backend={backend},
    arguments={arguments},
)
"""
WITHOUT = ["xdist", "randomly", "timeout", "hypothesispytest"]
ARGUMENTS = ["--ampcheck-only", "-p", "fake_runner", *(word for name in WITHOUT for word in ("-p", f"no:{name}"))]
CONTRACT = """
from importlib import metadata

@ampcheck.contract(devices="cpu")
def resnet():
    old = metadata.version("torch") == "2.4.1"
    return {"AMP102": "failed" if old else "passed", "seen": "a | clip of scaled gradients"}

@ampcheck.contract(devices="cpu")
def mlp():
    return {}
"""


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def nox(project, *arguments, **variables):
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project.path / "wheels"), "NOXSESSION": "", **variables}
    command = [sys.executable, "-m", "nox", "--no-color", *arguments]
    return project.pytester.run("env", *(f"{name}={value}" for name, value in environment.items()), *command)


@pytest.fixture
def user(project):
    """A project with two contracts, one of which fails under the older torch, and nothing to install from but its own wheels."""
    project.write(CONTRACT)
    for version in ("2.4.1", "2.8.0"):
        wheel(project.path / "wheels", "torch", version, {"torch/__init__.py": f"__version__ = {version!r}\n"})
    # All else is lent by the environment of these tests; what a session installs itself stands before it.
    lent = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    wheel(project.path / "wheels", "lent", "1.0", {"lent.pth": lent})
    (project.path / "pyproject.toml").write_text('[dependency-groups]\ntest = ["lent==1.0"]\n')
    return project


def write_noxfile(project, torch, backend, install=(), arguments=ARGUMENTS):
    text = NOXFILE.format(torch=torch, backend=repr(backend), install=list(install), arguments=arguments).strip()
    assert len(text.splitlines()) <= MOST_LINES
    (project.path / "noxfile.py").write_text(text + "\n")


def test_a_matrix_of_two_versions_ends_with_what_differs(user):
    write_noxfile(user, ["2.4.1", "2.8.0"], "virtualenv")
    result = nox(user, "-s", "ampcheck")
    assert result.ret == 1, "one version has a fault"
    folder = user.path / "ampcheck-reports"
    reports = {version: json.loads((folder / f"torch-{version}.json").read_text()) for version in ("2.4.1", "2.8.0")}
    failed = {v: [i["check"] for i in r["items"] if i["outcome"] == "failed"] for v, r in reports.items()}
    assert failed == {"2.4.1": ["AMP102"], "2.8.0": []}
    table = (folder / "differences.md").read_text().splitlines()
    rows = [line for line in table if line.startswith("| test")]
    assert rows == ["| test\\_amp.py::resnet \\[cpu\\] | AMP102 clip-scaled-gradients | failed | passed |"]
    assert "- 2.4.1: AMP102: a \\| clip of scaled gradients" in table
    result.stdout.fnmatch_lines(rows[0].replace("[", "?").replace("]", "?"))
    result.stderr.fnmatch_lines(["*ampcheck(torch='2.4.1'): failed*", "*ampcheck(torch='2.8.0'): success*"])


def test_what_follows_goes_to_pytest_and_no_environment_is_no_obstacle(user):
    here = metadata.version("torch").partition("+")[0]
    write_noxfile(user, [here, "1.0.0"], "none")
    old = user.path / "ampcheck-reports" / "torch-1.0.0.json"
    old.parent.mkdir()
    old.write_text('{"items": []}')
    result = nox(user, "-s", "ampcheck", "--", "test_amp.py::mlp")
    assert result.ret == 1
    result.stderr.fnmatch_lines(
        [f"*this session would judge torch {here}*, not 1.0.0.", f"*ampcheck(torch='{here}'): success*"]
    )
    assert not old.exists(), "an old report is none of this run"
    report = json.loads((old.parent / f"torch-{here}.json").read_text())
    assert {item["contract"] for item in report["items"]} == {"test_amp.py::mlp"}
    result.stdout.fnmatch_lines(["| 1.0.0 | no report*", "There are no two reports to compare."])


def test_the_noxfile_of_the_readme_works_and_is_short(project):
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    _, _, rest = readme.partition("The whole of a `noxfile.py`:\n\n```python\n")
    text, _, _ = rest.partition("```")
    assert 0 < len(text.splitlines()) <= MOST_LINES
    (project.path / "noxfile.py").write_text(text)
    result = nox(project, "--list")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["[*] ampcheck(torch='2.4.1') -> *", "[*] ampcheck-differences -> *"])


def test_sessions_are_listed_and_may_have_a_python_each(project):
    write_noxfile(project, {"2.4.1": "3.11", "2.8.0": "3.12"}, "venv")
    result = nox(project, "--list")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "[*] ampcheck(python='3.11', torch='2.4.1') -> *",
            "[*] ampcheck(python='3.12', torch='2.8.0') -> *",
            "[*] ampcheck-differences -> *",
        ]
    )


def test_the_table_alone_says_what_is_missing(project):
    write_noxfile(project, ["2.4.1"], "none")
    result = nox(project, "-s", "ampcheck-differences")
    assert result.ret == 1
    result.stderr.fnmatch_lines(["*there is no report in ampcheck-reports: run nox -s ampcheck first*"])


@pytest.mark.parametrize("torch", ["2.4.1", [], ["newest"], ["2.4.1; rm"], ["../2.4"]])
def test_what_is_no_list_of_versions_is_refused(torch):
    with pytest.raises(UsageError, match=r"matrix\(torch="):
        matrix(torch=torch)


def test_the_helper_needs_neither_torch_nor_pytest():
    program = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'pytest', 'hypothesis']); "
        "from ampcheck.nox import matrix; matrix(torch=['2.4.1'])"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
