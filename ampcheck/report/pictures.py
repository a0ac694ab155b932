"""Charts as inline SVG, drawn by matplotlib (the extra `ampcheck[report]`): the same bytes for the same numbers.

Colours are CSS variables of the page, so that one picture serves dark and light; text stays text.
"""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from ampcheck.report.charts import Bars, Chart, Lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "INSTALL", "available", "draw"]

INSTALL = "python -m pip install 'ampcheck[report]'"
#: What matplotlib draws with -> what the page shows. The left side only has to be unique.
COLOURS = {
    "ink": ("#010101", "currentColor"),
    "grid": ("#020202", "var(--grid)"),
    "limit": ("#030303", "var(--bad)"),
    "line0": ("#0400ff", "var(--blue)"),
    "line1": ("#0500ff", "var(--orange)"),
    "line2": ("#0600ff", "var(--green)"),
    "line3": ("#0700ff", "var(--pink)"),
    "used": ("#0800ff", "var(--blue)"),
    "low": ("#0900ff", "var(--blue)"),
    "both": ("#0a00ff", "var(--green)"),
    "full": ("#0b00ff", "var(--orange)"),
    "float16": ("#0c00ff", "var(--blue)"),
    "bfloat16": ("#0d00ff", "var(--green)"),
    "float32": ("#0e00ff", "var(--orange)"),
    "other": ("#0f00ff", "var(--pink)"),
}
#: Second sign of a colour, for those who do not see it and for print.
HATCHES = {"limit": "xx", "full": "///", "float32": "///", "both": "\\\\\\", "bfloat16": "\\\\\\", "other": "xx"}
INK, GRID, LIMIT = (COLOURS[name][0] for name in ("ink", "grid", "limit"))
WIDTH = 5.4  # inches; 72 units of the picture each
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ampcheck",
    "text.parse_math": False,
    "text.usetex": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.6,
}
#: Fonts are the page's; hundredths of a unit are finer than any screen.
FONTS = re.compile(r"font-family:[^;]*;? ?|font: (?P<size>[\d.]+px)[^;]*")
EXACT = re.compile(r"(?<=[ \"(])(-?\d+\.\d\d)\d+(?=[ \")])")
REFERENCE = re.compile(r"#([\w.-]+)")


def available() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(chart: Chart, prefix: str) -> str:
    """The chart as an `<svg>` element without namespaces, styles or names of its own.

    Args:
        chart: what to show; its texts are clean.
        prefix: makes the ids in it unique on the page.

    Raises:
        ImportError: without matplotlib.
    """
    # What another library deprecates, or a font lacks, is nobody's affair here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        svg = _drawn(chart)
    return _inline(svg, prefix, f"{chart.title}. {chart.caption}")


def _drawn(chart: Chart) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # A user's matplotlibrc has no say, nor do we in theirs.
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=(WIDTH, 1), layout="constrained")
        axes = figure.add_subplot()
        if isinstance(chart, Lines):
            _lines(figure, axes, chart)
        elif isinstance(chart, Bars):
            _bars(figure, axes, chart)
        axes.set_xlabel(chart.axis)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True)
    return written.getvalue()


def _lines(figure: Figure, axes: Axes, chart: Lines) -> None:
    from matplotlib.ticker import MaxNLocator

    figure.set_size_inches(WIDTH, 2.6)
    marked = False
    for line in chart.lines:
        xs = [x for x, _ in line.points]
        ys = [float("nan") if y is None else y for _, y in line.points]
        style = {"linestyle": "--" if line.dashed else "-", "marker": "o", "markersize": 3}
        shape = {"drawstyle": "steps-post"} if chart.steps else {}
        axes.plot(xs, ys, color=COLOURS[line.colour][0], label=line.label, **style, **shape)  # type: ignore[arg-type]
        spots = [(x, y) for x, y in line.marked if y is not None]
        if spots:
            label = "" if marked else chart.marks
            marked = True
            axes.plot(*zip(*spots, strict=True), "X", color=LIMIT, markersize=9, label=label)
    known = [y for line in chart.lines for _, y in line.points if y is not None]
    if known and min(known) > 0:
        axes.set_yscale("log", base=chart.base)
        low, high = min(known), max(known)
        if high / low < chart.base**2:  # a flat line in the middle of its decade, with ticks to read it by
            axes.set_ylim(low / chart.base, high * chart.base)
        _ticks(axes, chart.base)
    axes.set_xlim(-0.5, max(len(line.points) for line in chart.lines) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid(visible=True, axis="y", linewidth=0.6)
    if len(chart.lines) > 1 or marked:
        figure.legend(loc="outside upper left", ncols=4)


def _ticks(axes: Axes, base: int) -> None:
    """Powers as plain text: the page's fonts have no say in how exponents are set."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def power(value: float, _: object) -> str:
        import math

        return f"{base}^{round(math.log(value, base))}" if base == 2 else f"{value:g}"

    axes.yaxis.set_major_locator(LogLocator(base=base, numticks=7))
    axes.yaxis.set_major_formatter(FuncFormatter(power))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _bars(figure: Figure, axes: Axes, chart: Bars) -> None:
    figure.set_size_inches(WIDTH, 1.0 + 0.24 * len(chart.labels))
    places = range(len(chart.labels))
    left = [0.0] * len(chart.labels)
    for stack in chart.stacks:
        hatch = HATCHES.get(stack.colour)
        axes.barh(places, stack.values, left=left, color=COLOURS[stack.colour][0], height=0.66, label=stack.label, hatch=hatch, edgecolor=GRID, linewidth=0)  # fmt: skip
        left = [start + value for start, value in zip(left, stack.values, strict=True)]
    longest = max([*left, chart.limit or 0.0]) or 1.0
    for place, end, text in zip(places, left, chart.ends, strict=True):
        if chart.limit is not None and 0 <= chart.limit - end < 0.15 * longest:
            end = chart.limit  # not across the line
        axes.text(end + longest * 0.01, place, text, va="center", fontsize=8)
    axes.set_xlim(0, longest * 1.18)
    if chart.limit is not None:
        axes.axvline(chart.limit, color=LIMIT, linewidth=1.4, linestyle="--")
    axes.set_yticks(places, [_short(label) for label in chart.labels])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:g}" if longest < 1000 else "{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.grid(visible=True, axis="x", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper left", ncols=4)


def _short(label: str, most: int = 34) -> str:
    """The end of a path says more than its middle."""
    return label if len(label) <= most else f"{label[: most // 3]}…{label[-(most - most // 3 - 1) :]}"


def _inline(svg: str, prefix: str, label: str) -> str:
    """A file of matplotlib as a part of a page."""
    root = ET.fromstring(svg[svg.index("<svg") :])  # noqa: S314 - we wrote it ourselves
    used = set()
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in list(element.attrib):
            value = element.attrib.pop(name)
            element.set(name.rpartition("}")[2], value)
            if name.endswith(("href", "clip-path", "style", "fill")):
                used |= set(REFERENCE.findall(value))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "style"):  # a date and a version; rules that would hold for the whole page
                parent.remove(child)
    for element in root.iter():
        if (own := element.get("id")) is not None:
            if own in used:
                element.set("id", f"{prefix}{own}")
            else:
                del element.attrib["id"]
        for name, value in list(element.attrib.items()):
            if name in ("href", "clip-path", "style", "fill", "stroke"):
                element.set(name, _coloured(REFERENCE.sub(rf"#{prefix}\1", value) if name in ("href", "clip-path") else value, prefix))  # fmt: skip
    for name in ("version", "width", "height"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    return EXACT.sub(r"\1", ET.tostring(root, encoding="unicode"))


def _coloured(value: str, prefix: str) -> str:
    value = FONTS.sub(lambda match: f"font-size: {match['size']}" if match["size"] else "", value)
    for drawn, shown in COLOURS.values():
        value = value.replace(drawn, shown)
    return re.sub(r"url\(#([\w.-]+)\)", lambda m: f"url(#{m[1] if m[1].startswith(prefix) else prefix + m[1]})", value)
