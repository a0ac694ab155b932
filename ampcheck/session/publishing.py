"""The files and the CI service that a session reports to, besides its terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ampcheck.config import REPORTS, Settings
from ampcheck.errors import UsageError
from ampcheck.report import markdown
from ampcheck.report.annotations import commands
from ampcheck.report.files import below_repository, clear
from ampcheck.report.formats import FORMATS, write_all

__all__ = ["Publishing"]


class Publishing:
    """Where a session's report goes.

    Args:
        settings: of the session.
        root: pytest's rootdir.

    Raises:
        UsageError: if a report could not be written: better no run than one without its report.
    """

    def __init__(self, settings: Settings, root: Path) -> None:
        self.settings = settings
        self.targets: dict[str, Path] = {name: path for name in REPORTS if (path := getattr(settings, name)) is not None}
        self.prefix = below_repository(root)
        for name, path in self.targets.items():
            _clear(name, path)

    def write(self, document: Mapping[str, Any]) -> str:
        """Write the files. Returns what went wrong, for the terminal; empty if nothing did."""
        try:
            write_all(document, self.targets, self.prefix)
        except UsageError as error:
            return str(error)
        return ""

    def tell(self, document: Mapping[str, Any]) -> Iterator[str]:
        """Add to the summary of the job, and mark findings, where a service runs us that has a place for it.

        Returns:
            Lines to be printed as they are: orders to the service, and what went wrong. The run is not red for that.
        """
        try:
            self._summarize(document)
        except OSError as error:
            yield f"the summary cannot be written to $GITHUB_STEP_SUMMARY: {error}"
        on = self.settings.annotations
        if on == "on" or (on == "auto" and os.environ.get("GITHUB_ACTIONS") == "true"):
            yield from commands(document, self.prefix)

    def _summarize(self, document: Mapping[str, Any]) -> None:
        """Append to the file that GitHub shows beside the job, as far as there is room."""
        named = os.environ.get("GITHUB_STEP_SUMMARY")
        if not named:
            return
        path = Path(named)
        room = markdown.MOST - (path.stat().st_size if path.exists() else 0) - 1
        text = markdown.render(document, room)
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(f"{text}\n" if text else "")


def _clear(name: str, path: Path) -> None:
    try:
        clear(path)
    except OSError as error:
        raise UsageError(f"the {FORMATS[name][1]} report cannot be written: {error}") from None
