"""Runs pytest on small projects whose contracts are judged by a stand-in for the runner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# An in-process run forgets the modules that it imported first; these must be the same ones for all runs.
import ampcheck.contract
import ampcheck.session.hooks
import ampcheck.session.scheduling  # noqa: F401

FAKE = Path(__file__).with_name("fake_runner.py")


class Project:
    """A directory with tests, and what a run of pytest there left."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        (self.path / "fake_runner.py").write_text(FAKE.read_text("utf-8"), "utf-8")
        pytester.makeini("[pytest]\n")
        pytester.syspathinsert()

    def write(self, text: str, name: str = "test_amp.py") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import pytest\nimport ampcheck\n\n" + text, "utf-8")
        return path

    def ini(self, text: str) -> None:
        self.pytester.makeini(f"[pytest]\n{text}\n")

    def run(self, *args: str, process: bool = False, plugins: bool = False) -> pytest.RunResult:
        """Run pytest; xdist, randomly and timeout stay out unless `plugins`."""
        run = self.pytester.runpytest_subprocess if process else self.pytester.runpytest_inprocess
        without = () if plugins else ("-p", "no:xdist", "-p", "no:randomly", "-p", "no:timeout")
        # Its plugin imports all of Hypothesis at the end of every process, which is most of the time that a run takes.
        without = ("-p", "no:hypothesispytest", *without)
        return run("-p", "fake_runner", *without, *args)

    def judge(self, *args: str, **options: bool) -> pytest.RunResult:
        return self.run("--ampcheck", "--ampcheck-json=report.json", *args, **options)

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.path / "report.json").read_text("utf-8"))

    @property
    def judged(self) -> list[str]:
        """Contract and device of each judgement that was made."""
        log = self.path / "judged.txt"
        return [line.rsplit(" ", 1)[0] for line in log.read_text().splitlines()] if log.exists() else []

    def outcomes(self) -> dict[str, str]:
        return {f"{item['contract']} {item['check']} {item['policy']}": item["outcome"] for item in self.report["items"]}


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    return Project(pytester)


@pytest.fixture
def ids(project: Project) -> Callable[..., list[str]]:
    """Node ids that a run collects."""

    def collect(*args: str, **options: bool) -> list[str]:
        result = project.run("--ampcheck", "--collect-only", "-q", *args, **options)
        return [line for line in result.outlines if "::" in line]

    return collect
