"""Every format of a report, each made of the one JSON document."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ampcheck.errors import UsageError
from ampcheck.report.files import put

__all__ = ["FORMATS", "render", "write_all"]

#: Format -> the module that writes it (imported only when it is asked for), and its name in messages.
FORMATS = {
    "json": ("ampcheck.report.json", "JSON"),
    "markdown": ("ampcheck.report.markdown", "Markdown"),
    "sarif": ("ampcheck.report.sarif", "SARIF"),
    "junit": ("ampcheck.report.junit", "JUnit"),
    "html": ("ampcheck.report.html", "HTML"),
}


def render(document: Mapping[str, Any], name: str, prefix: str = "") -> str:
    """The report in one format.

    Args:
        document: as `ampcheck.report.json.document` makes it.
        name: a key of `FORMATS`.
        prefix: the folder of pytest's rootdir seen from the root of the repository, for formats whose places a code host
            resolves (SARIF).

    Returns:
        The text of the file.
    """
    module = importlib.import_module(FORMATS[name][0])
    writer: Callable[..., str] = module.render
    return writer(document, prefix) if name == "sarif" else writer(document)


def write_all(document: Mapping[str, Any], targets: Mapping[str, Path], prefix: str = "") -> None:
    """Write the report in several formats. Each file is there whole or not at all, and one that fails does not keep the others.

    Args:
        document: as `ampcheck.report.json.document` makes it.
        targets: format (a key of `FORMATS`) -> where it goes; folders are made.
        prefix: as for `render`.

    Raises:
        UsageError: names each file that could not be written, and why.
    """
    problems = [_write(document, name, targets[name], prefix) for name in sorted(targets, key=list(FORMATS).index)]
    if any(problems):
        raise UsageError("; ".join(filter(None, problems)))


def _write(document: Mapping[str, Any], name: str, path: Path, prefix: str) -> str:
    """Write one file. Returns why that failed; empty if it did not."""
    try:
        put(path, render(document, name, prefix))
    except OSError as error:
        return f"the {FORMATS[name][1]} report cannot be written: {error}"
    except Exception as error:  # the other reports, and what the run found, are worth having all the same
        return f"the {FORMATS[name][1]} report failed by an error of ampcheck's own, please report it: {type(error).__name__}: {error}"
    return ""
