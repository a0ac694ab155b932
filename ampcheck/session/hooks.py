"""The hooks of a session that judges contracts: each is one call."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ampcheck.session.collect import Collection
from ampcheck.session.judging import Judging
from ampcheck.session.results import Results

__all__ = ["Hooks"]


class Hooks:
    """Registered by `ampcheck.plugin` where `--ampcheck` is asked for.

    Raises:
        ampcheck.errors.UsageError: if a setting is wrong.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.judging = Judging(config)
        self.collection = Collection(self.judging)
        self.results = Results(config, self.judging.settings, self.judging.gate)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        # before xdist starts its workers, which is the last of these calls
        self.judging.measure_base(session.config)

    def pytest_unconfigure(self) -> None:
        self.judging.close()

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return self.collection.conftest(file_path, parent)

    def pytest_pycollect_makeitem(self, collector: Any, name: str, obj: object) -> list[pytest.Item] | None:
        return self.collection.items(collector, name, obj)

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        self.collection.parametrize(metafunc)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        self.collection.complete(session, items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self.results.attach(item, report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.results.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return self.results.status(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.results.finish(session, self.collection.found)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self.results.summarize(terminalreporter)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from ampcheck.session.scheduling import make_scheduler

        return make_scheduler(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        self.results.crashed(crashitem, report, sched)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["ampcheck"] = self.judging.gate.told

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.results.worker_finished(node)
