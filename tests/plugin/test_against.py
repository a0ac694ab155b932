"""Comparing with another commit: what of the repository runs (nothing by itself), whose code is measured, and what is left behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ampcheck.errors import UsageError
from ampcheck.session.worktree import commit_of, top_of, worktree

OK = "@ampcheck.contract\ndef mlp():\n    return {}\n"
FAULTY = '@ampcheck.contract\ndef mlp():\n    return {"AMP102": "failed", "seen": "a clip"}\n'


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, message: str = "base") -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(project: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A project under git; configuration of the machine stays out, and temporary folders are counted."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    project.temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(project.temporary))
    git(project.path, "init", "-q", "-b", "main")
    (project.path / ".gitignore").write_text("judged.txt\nreport.json\n__pycache__\n")
    return project


def changes(project: Any) -> list[str]:
    return [f"{c['verdict']}: {c['text']}" for c in project.report["changes"]]


def clean(project: Any) -> bool:
    """No worktree and no temporary folder is left, and the checkout is as it was."""
    return git(project.path, "worktree", "list").count("\n") == 0 and not list(project.temporary.iterdir())


def test_it_compares_with_the_base_measured_first(repository: Any) -> None:
    repository.write(OK)
    base = commit(repository.path)
    repository.write(FAULTY)
    result = repository.judge("--ampcheck-against", "main")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines([f"ampcheck: measuring main ({base[:12]}) first", f"changes since main ({base[:12]}): 1 new"])
    assert changes(repository) == ["new: AMP102 is new: a clip"]
    assert repository.report["baseline"]["revision"] == f"main ({base[:12]})"
    assert clean(repository)
    assert git(repository.path, "status", "--porcelain") == "M test_amp.py"


def test_what_the_base_has_too_is_no_change(repository: Any) -> None:
    repository.write(FAULTY)
    commit(repository.path)
    result = repository.judge("--ampcheck-against", "HEAD")
    assert result.ret == 0
    result.assert_outcomes(passed=4, xfailed=1)
    assert changes(repository) == []


def test_settings_are_read_from_the_base(repository: Any) -> None:
    """A change that excuses its own fault, in the contract, in the ini and in the baseline file, fails."""
    repository.write(OK)
    commit(repository.path)
    repository.write(FAULTY.replace("@ampcheck.contract", '@ampcheck.contract(xfail={"AMP102": "later"})'))
    repository.ini("ampcheck_ignore = AMP101")
    repository.run("--ampcheck", "--ampcheck-update-baseline")
    assert (repository.path / "ampcheck-baseline.json").exists()
    repository.judge().assert_outcomes(passed=3, xfailed=1)
    repository.judge("--ampcheck-against", "HEAD").assert_outcomes(passed=2, xfailed=1, failed=1)
    assert changes(repository) == [
        "worse: loosened: AMP101 is now ignored",
        "worse: loosened: AMP102 is now expected to fail (later)",
        "info: AMP102 is new, an expected failure: later",
    ]


def test_under_xdist(repository: Any) -> None:
    repository.write(OK)
    commit(repository.path)
    repository.write(FAULTY)
    repository.judge("--ampcheck-against", "HEAD", "-n2", process=True, plugins=True).assert_outcomes(passed=3, failed=2)
    assert changes(repository) == ["new: AMP102 is new: a clip"]


def test_a_selection_is_one_in_the_base_too(repository: Any) -> None:
    repository.write(OK)
    commit(repository.path)
    repository.write(OK, "test_new.py")
    repository.write(FAULTY)
    result = repository.judge("--ampcheck-against", "HEAD", "-k", "baseline", "test_amp.py", "test_new.py")
    result.assert_outcomes(passed=1, failed=1, deselected=8)
    assert "info: a new contract: there is nothing to compare it with" in changes(repository)
    repository.judge("--ampcheck-against", "HEAD", "test_new.py").assert_outcomes(passed=5)
    repository.judge("--ampcheck-against", "HEAD", "test_amp.py::mlp[cpu-baseline]").assert_outcomes(failed=1)


def test_the_value_of_an_option_is_no_file(repository: Any) -> None:
    (repository.path / "cpu").mkdir()
    (repository.path / "cpu" / "kernel.txt").write_text("")
    repository.write(OK)
    commit(repository.path)
    (repository.path / "new").mkdir()
    repository.judge("--ampcheck-against", "HEAD", "--ampcheck-device", "cpu", "test_amp.py").assert_outcomes(passed=5)
    assert changes(repository) == []
    repository.judge("--ampcheck-against", "HEAD", "-p", "no:cacheprovider", "new", "test_amp.py").assert_outcomes(passed=5)
    assert changes(repository) == []


def test_a_configuration_may_always_compare(repository: Any) -> None:
    repository.write(OK)
    repository.ini("addopts = --ampcheck --ff --ampcheck-against=HEAD -x")
    commit(repository.path)
    repository.write(FAULTY)
    repository.judge("--maxfail=9").assert_outcomes(passed=3, failed=2)
    assert changes(repository) == ["new: AMP102 is new: a clip"]


def test_editable_installs_and_the_path_are_those_of_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from ampcheck.session import against

    top, tree = tmp_path / "head", tmp_path / "base"
    finder = SimpleNamespace(MAPPING={"lib": str(top / "python" / "lib"), "other": "/elsewhere/other"})
    monkeypatch.setitem(against.sys.modules, "__editable___lib_finder", finder)
    installed = top / ".venv" / "lib" / "site-packages"
    monkeypatch.setattr(against.sys, "path", [str(top / "first"), str(installed), "/elsewhere"])
    monkeypatch.setenv("PYTHONPATH", f"/given{os.pathsep}{top / 'first'}")
    assert against._paths(top, tree) == [str(tree / "first"), str(tree / "python"), "/given"]


def test_a_base_without_contracts(repository: Any) -> None:
    (repository.path / "test_plain.py").write_text("def test_nothing():\n    pass\n")
    commit(repository.path)
    repository.write(OK)
    result = repository.judge("--ampcheck-against", "HEAD")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["ampcheck: HEAD * is compared with nothing: it has no contract that runs"])
    assert clean(repository)


def test_a_base_that_does_not_run_is_an_error_with_what_it_said(repository: Any) -> None:
    repository.write("import does_not_exist\n" + OK)
    commit(repository.path)
    repository.write(OK)
    result = repository.run("--ampcheck", "--ampcheck-against", "HEAD")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the contracts of HEAD * could not be run; its pytest said:", "*does_not_exist*"])
    assert clean(repository)


def test_code_of_the_checkout_is_not_measured_as_the_base(repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An install that puts this checkout first, whatever the path says."""
    folder = repository.path / "lib"
    folder.mkdir()
    (folder / "mylib.py").write_text("WISHES = {}\n")
    repository.write(f"import sys\nsys.path.insert(0, {str(folder)!r})\nfrom mylib import WISHES\n{OK}")
    commit(repository.path)
    result = repository.run("--ampcheck", "--ampcheck-against", "HEAD")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*the base imported code of this checkout*mylib from {folder}/mylib.py*pythonpath*"])
    assert clean(repository)


@pytest.mark.parametrize("how", ["pythonpath", "path file"])
def test_a_src_layout_is_that_of_the_base(repository: Any, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    folder = repository.path / "src"
    folder.mkdir()
    (folder / "layout_lib.py").write_text("WISHES = {}\n")
    if how == "pythonpath":
        repository.ini("pythonpath = src")
    else:
        monkeypatch.syspath_prepend(str(folder))  # what an editable install does
    repository.write("from layout_lib import WISHES\n\n@ampcheck.contract\ndef mlp():\n    return WISHES\n")
    commit(repository.path)
    (folder / "layout_lib.py").write_text('WISHES = {"AMP102": "failed", "seen": "a clip"}\n')
    repository.judge("--ampcheck-against", "HEAD").assert_outcomes(passed=3, failed=2)
    assert changes(repository) == ["new: AMP102 is new: a clip"]


def test_nothing_of_the_repository_runs_by_itself(repository: Any) -> None:
    """Hooks, a file system monitor, filters and submodules: not in making the worktree, and not in removing it."""
    ran = repository.path / "ran.txt"
    script = repository.path.parent / "spy.sh"
    script.write_text(f"#!/bin/sh\necho $0 $@ >> {ran}\ncat\n")
    script.chmod(0o755)
    other = repository.path.parent / "submodule"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    (other / "inside.py").write_text("")
    commit(other)
    repository.write(OK)
    (repository.path / ".gitattributes").write_text("*.bin filter=spy\n")
    (repository.path / "weights.bin").write_text("pointer")
    git(repository.path, "submodule", "add", "-q", str(other), "sub")
    commit(repository.path)
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc", "post-commit"):
        (repository.path / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\necho {hook} >> {ran}\n")
        (repository.path / ".git" / "hooks" / hook).chmod(0o755)
    for name, value in {
        "filter.spy.smudge": str(script), "filter.spy.clean": str(script), "filter.spy.required": "true",
        "hook.spy.event": "post-checkout",
        "hook.spy.command": str(script),
        "core.fsmonitor": str(script), "submodule.recurse": "true",
    }.items():  # fmt: skip
        git(repository.path, "config", name, value)
    # the traps work: an ordinary checkout springs them
    git(repository.path, "worktree", "add", "-q", "--detach", str(repository.path.parent / "trap"))
    assert {"post-checkout", str(script)} <= set(ran.read_text().split())
    git(repository.path, "worktree", "remove", "--force", "--force", str(repository.path.parent / "trap"))
    ran.unlink()
    result = repository.judge("--ampcheck-against", "HEAD")
    result.assert_outcomes(passed=5)
    assert not ran.exists(), ran.read_text()
    with worktree(repository.path, "HEAD") as tree:
        assert not list((tree / "sub").iterdir())
        assert (tree / "weights.bin").read_text() == "pointer"
    assert not ran.exists(), ran.read_text()


@pytest.mark.parametrize("revision", ["nowhere", "--help", "", "HEAD:test_amp.py"])
def test_a_revision_that_is_none(repository: Any, revision: str) -> None:
    repository.write(OK)
    commit(repository.path)
    result = repository.run("--ampcheck", f"--ampcheck-against={revision}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--ampcheck-against: " in result.stderr.str()
    assert clean(repository)


def test_collecting_only_measures_nothing(repository: Any) -> None:
    repository.write(OK)
    commit(repository.path)
    result = repository.run("--ampcheck", "--collect-only", "-q", "--ampcheck-against", "HEAD")
    assert "measuring" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*mlp[[]cpu-baseline[]]"])


def test_reports_are_those_of_this_run(repository: Any) -> None:
    """The base is given no place to write to, neither by the arguments nor by its ini."""
    repository.write(OK)
    repository.ini("ampcheck_json = report.json\naddopts = -x")
    commit(repository.path)
    repository.write(FAULTY)
    repository.run(
        "--ampcheck", "--ampcheck-against", "HEAD", "--ampcheck-json", str(repository.path / "mine.json"), "--junitxml=j.xml"
    )
    assert (repository.path / "mine.json").exists() and (repository.path / "j.xml").exists()
    assert not (repository.path / "report.json").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_the_worktree_is_gone_however_it_ends(repository: Any, error: type[BaseException]) -> None:
    repository.write(OK)
    head = commit(repository.path)

    def use() -> None:
        with worktree(repository.path, head) as tree:
            assert (tree / "test_amp.py").exists()
            (tree / "left.txt").write_text("untracked")
            raise error

    with pytest.raises(error):
        use()
    assert clean(repository)


def test_an_interrupted_base_leaves_no_process(repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ampcheck.session import against

    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.interrupt = "pytest" in args[0]  # not git, which lays and removes the worktree
            if self.interrupt:
                started.append(self)

        def wait(self, timeout: float | None = None) -> int:
            if self.interrupt:
                self.interrupt = False
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(against.subprocess, "Popen", Interrupted)
    repository.write(OK)
    head = commit(repository.path)
    with pytest.raises(KeyboardInterrupt), worktree(repository.path, head) as tree:
        against._run(["--help"], tree, repository.path, tree, repository.temporary)
    assert started[0].poll() is not None
    (repository.temporary / "base.log").unlink()
    assert clean(repository)


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is in no git repository"):
        top_of(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="needs git"):
        top_of(tmp_path)


def test_an_environment_of_git_is_not_followed(repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a hook git sets GIT_DIR and GIT_INDEX_FILE, which would lead elsewhere."""
    repository.write(OK)
    head = commit(repository.path)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    assert commit_of(repository.path, "HEAD") == head
