"""One HTML page that needs nothing else: no network, no script, no font. Jinja2 escapes every text that is put in it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

import ampcheck
from ampcheck.report import pictures
from ampcheck.report.charts import Chart, charts, number, size
from ampcheck.report.modules import Module, tree
from ampcheck.report.text import one_line
from ampcheck.report.view import COUNTS, Contract, view

__all__ = ["DRAWN", "render"]

#: Pictures are drawn for so many contracts, those that need eyes first; the others have tables.
DRAWN = 8


@dataclass
class Picture:
    """A chart and its drawing; `svg` is empty where it is not drawn, `why` then says why.

    It is the one text that the template does not escape: an element tree wrote it, and escaped what is in it.
    """

    chart: Chart
    svg: str = ""
    why: str = ""


@dataclass
class Page:
    """One contract: what the report says of it, and what it did."""

    anchor: str
    contract: Contract
    open: bool
    pictures: list[Picture]
    modules: list[Module]
    modules_left: int
    orders: list[list[tuple[str, str]]]
    settings: list[tuple[str, str]]
    notes: list[str]
    headroom: list[tuple[str, str]]
    first_nonfinite: str
    bundle: str
    seconds: float


def render(document: Mapping[str, Any]) -> str:
    """The page.

    Args:
        document: as `ampcheck.report.json.document` makes it.
    """
    shown = view(document)
    opened = max(sum(c.verdict == "failed" for c in shown.contracts[:3]), 1)
    pages = [_page(contract, index, index < opened) for index, contract in enumerate(shown.contracts)]
    return _template().render(
        view=shown,
        pages=pages,
        counts=COUNTS,
        version=ampcheck.__version__,
        drawn=DRAWN,
        install="" if pictures.available() else pictures.INSTALL,
        size=size,
    )


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("ampcheck", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["one_line"] = one_line
    return environment.get_template("report.html.jinja")


def _page(contract: Contract, index: int, opened: bool) -> Page:
    profile = contract.profile
    modules, left = tree(profile.get("modules") or ())
    places = profile.get("places") or {}
    settings = contract.raw.get("settings") or {}
    prefix = f"c{index + 1}"
    return Page(
        prefix,
        contract,
        opened,
        [_picture(chart, f"{prefix}-{n}-", index < DRAWN) for n, chart in enumerate(charts(contract))],
        modules,
        left,
        [[(one_line(name, 80), _at(name, places)) for name in order] for order in profile.get("events") or ()],
        [(one_line(name, 40), _setting(value)) for name, value in settings.items() if value],
        [one_line(note) for note in contract.raw.get("notes") or ()],
        _headroom(contract.raw.get("headroom") or {}),
        _first(profile.get("first_nonfinite")),
        one_line(contract.raw.get("evidence") or ""),
        sum(cost["seconds"] for cost in contract.costs),
    )


def _picture(chart: Chart, prefix: str, wanted: bool) -> Picture:
    if not wanted or not pictures.available():
        return Picture(chart)
    try:
        return Picture(chart, pictures.draw(chart, prefix))
    except Exception as error:  # the drawing is not ours: whatever happens there, the page has the numbers
        return Picture(chart, why=one_line(f"could not be drawn: {type(error).__name__}: {error}"))


def _at(name: str, places: Mapping[str, Any]) -> str:
    return one_line(places.get(name) or "", 120)


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return one_line("; ".join(f"{key}: {text}" for key, text in value.items()))
    return one_line(", ".join(map(str, value)) if isinstance(value, list) else value)


def _headroom(policies: Mapping[str, Any]) -> list[tuple[str, str]]:
    """For each policy the largest part of the allowed deviation that each quantity used."""
    found = []
    for policy, quantities in policies.items():
        known = [(one_line(name, 40), number(ratio)) for name, ratio in quantities.items()]
        parts = [f"{'more than all' if ratio is None else f'{ratio:.0%}'} by the {name}" for name, ratio in known]
        if parts:
            found.append((one_line(policy, 40), ", ".join(parts)))
    return found


def _first(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    where = f" in {entry['module']}" if entry.get("module") else ""
    line = f" at {entry['line']}" if entry.get("line") else ""
    told = f"{entry['op']}{where}{line}, {entry['phase']} of call {entry['call']}: {entry['kind']} in {entry['dtype']}"
    return one_line(f"{told}, {entry['count']} of {entry['total']} values; {entry['effect']}", 600)
