"""Which scenario of which contract is running, for the person who waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ampcheck.report.text import one_line

__all__ = ["Progress"]

#: A terminal is told of a contract that takes longer than this, in seconds, and then as often.
PATIENCE = 5.0


class Progress:
    """Writes lines between the dots: with `-v` one a scenario, else on a terminal one every few seconds."""

    def __init__(self, config: pytest.Config, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        self.capture: Any = config.pluginmanager.get_plugin("capturemanager")
        verbosity = config.getoption("verbose", 0)  # the option is the terminal plugin's, which may be switched off
        self.always = verbosity > 0
        self.never = self.reporter is None or verbosity < 0 or not (self.always or self.reporter.isatty)

    def of(self, contract: str, device: str) -> Callable[[str], None] | None:
        """A function that is told the scenario which starts; None where nobody looks."""
        if self.never:
            return None
        last = self.clock()

        def tell(scenario: str) -> None:
            nonlocal last
            if self.always or self.clock() - last >= PATIENCE:
                last = self.clock()
                self._write(f"ampcheck: {one_line(contract, 120)} [{one_line(device, 20)}]: {one_line(scenario, 60)}")

        return tell

    def _write(self, line: str) -> None:
        def write() -> None:
            self.reporter.ensure_newline()
            self.reporter.write_line(line)

        if self.capture is None:
            write()
            return
        with self.capture.global_and_fixture_disabled():
            write()
