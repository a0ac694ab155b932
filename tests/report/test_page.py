"""The page and its pictures: what they are made of, for whom they are readable, and what they do without matplotlib."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest

from ampcheck.report import html, pictures
from ampcheck.report.charts import Bars, Lines, charts, number, size
from ampcheck.report.modules import MOST, tree
from ampcheck.report.view import Contract, view

Build = Callable[..., dict[str, Any]]
CSS = resources.files("ampcheck").joinpath("report/templates/report.css").read_text("utf-8")


def drawn(document: dict[str, Any]) -> list[Any]:
    return list(charts(view(document).contracts[0]))


def of(**profile: Any) -> list[Any]:
    return list(charts(Contract("c", "cpu", {}, True, raw={"profile": profile})))


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_the_same_numbers_give_the_same_bytes(document: Build) -> None:
    assert html.render(document()) == html.render(document())


def test_every_kind_of_picture_is_drawn(document: Build) -> None:
    titles = [chart.title for chart in drawn(document())]
    assert titles == [
        "Loss scale",
        "Gradient that enters the optimizer",
        "Ops by precision",
        "Parity headroom by layer",
        "Optimizer state",
    ]
    assert html.render(document()).count("<svg") == len(titles)


def test_pictures_bring_no_names_colours_fonts_or_dates_of_their_own(document: Build) -> None:
    page = html.render(document())
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    svg = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "skipped</text>" in svg, "text stays text"
    assert not re.search(r"#[0-9a-f]{6}\b|DejaVu|metadata|xmlns|http|<style|\d\.\d{3}", svg)
    assert {"currentColor", "var(--blue)", "var(--bad)", "var(--grid)"} <= set(re.findall(r"currentColor|var\(--\w+\)", svg))


def test_a_skipped_step_is_marked(document: Build) -> None:
    skipped, taken = (drawn(data)[0] for data in (document(), document()))
    taken.lines[0].marked = []
    pages = [pictures.draw(chart, "x") for chart in (skipped, taken)]
    assert ["step skipped" in page for page in pages] == [True, False]
    assert ["var(--bad)" in page for page in pages] == [True, False]


def test_a_users_settings_of_matplotlib_change_nothing(document: Build) -> None:
    import matplotlib as mpl

    chart = drawn(document())[0]
    plain = pictures.draw(chart, "x")
    with mpl.rc_context({"font.size": 30, "xtick.major.size": 20, "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        assert pictures.draw(chart, "x") == plain
        assert dict(mpl.rcParams) == before


def test_parity_is_told_in_a_line(document: Build, undrawn: None) -> None:
    said = "Parity with FP32, text 54: of what rounding explains, 25% by the text 55, more than all by the text 56 used."
    assert said in html.render(document())


def test_without_the_extra_tables_stand_in(document: Build, undrawn: None) -> None:
    page = html.render(document())
    assert "<svg" not in page
    assert "python -m pip install &#39;ampcheck[report]&#39;" in page
    assert page.count("<figure>") == page.count("</figcaption>\n\n<details open><summary>Numbers") == 5


def test_a_picture_that_fails_leaves_its_numbers(document: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("no <b>font</b>")

    monkeypatch.setattr(pictures, "draw", broken)
    page = html.render(document())
    assert page.count("could not be drawn: RuntimeError: no &lt;b&gt;font&lt;/b&gt;.") == 5
    assert "Pictures need matplotlib" not in page


def test_only_the_first_contracts_have_pictures(document: Build) -> None:
    data = document()
    entry, items = data["contracts"][0], data["items"][:1]
    data["contracts"] = [{**entry, "contract": f"t.py::{n}"} for n in range(html.DRAWN + 3)]
    data["items"] = [{**items[0], "contract": f"t.py::{n}"} for n in range(html.DRAWN + 3)]
    page = html.render(data)
    assert page.count("<svg") == 4 * html.DRAWN
    assert f"Pictures are drawn for the first {html.DRAWN} contracts" in page


# -- their numbers ----------------------------------------------------------------------------------------------------


def test_the_worst_layers_come_first() -> None:
    layers = [{"name": f"layer{n}", "measured": n / 10, "allowed": 1.0} for n in range(30)]
    (chart,) = of(layers={"as-written": [*layers, {"name": "lost", "measured": "inf", "allowed": 1.0}]})
    assert isinstance(chart, Bars)
    assert chart.labels[:3] == ["lost", "layer29", "layer28"]
    assert chart.rows[0][:3] == ["lost", "inf times", "not finite"]
    assert chart.ends[1] == "290.0%"
    assert chart.caption.endswith("20 of 31 over the limit; the worst 15 are shown.")
    assert [max(stack.values) for stack in chart.stacks] == [0.0, 3.0], "a bar ends where its length says nothing more"
    assert [row.label for row in chart.stacks] == ["within the limit", "over the limit"]


def test_the_scale_is_told_in_powers_of_two() -> None:
    entries = [
        {"call": n, "scaler": 0, "scale": s, "skipped": n == 1} for n, s in enumerate([65536.0, 65536.0, 32768.0, "inf", 3.0])
    ]
    (chart,) = of(scale=entries)
    assert isinstance(chart, Lines)
    assert [row[3] for row in chart.rows] == ["2^16", "2^16", "2^15", "not finite", "3"]
    assert [row[4] for row in chart.rows] == ["taken", "skipped", "taken", "taken", "taken"]
    assert chart.caption == "3 to 2^16 over 5 updates; 1 of 5 updates skipped their step."
    assert chart.lines[0].points[3] == (3, None)
    assert pictures.draw(chart, "x")


@pytest.mark.parametrize("scales", [[1.0], [0.0, 1.0], ["nan"], [2.0**-24, 2.0**127]])
def test_any_scale_can_be_drawn(scales: list[Any]) -> None:
    (chart,) = of(scale=[{"call": 0, "scaler": None, "scale": s, "skipped": True} for s in scales])
    assert pictures.draw(chart, "x").startswith("<svg")


def test_steps_without_a_finite_gradient_are_counted() -> None:
    norms = [1.0, None, 3.0]
    (chart,) = of(gradients=[{"call": n, "optimizer": 0, "norm": v, "peak": v} for n, v in enumerate(norms)])
    assert chart.caption == "Unscaled; its norm peaks at 3; 1 of 3 steps had none that was finite, or were skipped."
    assert of(gradients=[{"call": 0, "optimizer": 0, "norm": None, "peak": None}]) == []


def test_ops_are_counted_by_precision() -> None:
    rows = [(["float16"], 6, 100.0), (["float32"], 2, 300.0), (["float16", "float32"], 1, 0.0), ([], 1, 0.0)]
    (chart,) = of(ops=[{"family": "matmul", "phase": "forward", "dtypes": d, "count": n, "flops": f} for d, n, f in rows])
    assert chart.rows == [["matmul, forward", "6", "1", "3"]]
    assert chart.caption == "25% of the counted FLOPs run in 16 bits."


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (38912, "38.9 kB"), (5e6, "5 MB"), (7e13, "70 TB")])
def test_sizes_are_read_at_a_glance(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize("value", [None, True, "inf", "x", float("nan"), [], {}])
def test_what_is_no_finite_number_is_none(value: object) -> None:
    assert number(value) is None


# -- the dtype map ----------------------------------------------------------------------------------------------------


def module(path: str, kind: str = "Linear", parameters: str | None = "float32", **forward: int) -> dict[str, Any]:
    return {"module": path, "kind": kind, "parameters": parameters, "forward": forward or {"float16": 6}}


def test_layers_that_are_alike_stand_once() -> None:
    blocks = [[module(f"blocks.{n}", "Block", None), module(f"blocks.{n}.fc")] for n in range(12)]
    blocks[7][1] = module("blocks.7.fc", parameters="float16")
    rows, left = tree(
        [module("", "Net", None), module("blocks", "ModuleList", None), *itertools.chain(*blocks), module("head")]
    )
    assert [("  " * row.depth + row.name, row.alike) for row in rows] == [
        ("(the model)", 1),
        ("  blocks", 1),
        ("    0 to 6", 7),
        ("      fc", 1),
        ("    7", 1),
        ("      fc", 1),
        ("    8 to 11", 4),
        ("      fc", 1),
        ("  head", 1),
    ]
    assert left == 0
    assert rows[5].parameters == "float16"


def test_only_numbered_layers_are_put_together() -> None:
    rows, _ = tree([module("left"), module("right")])
    assert [row.name for row in rows] == ["left", "right"]


def test_a_map_ends_somewhere() -> None:
    rows, left = tree([module(f"m{n}") for n in range(MOST + 5)])
    assert (len(rows), left) == (MOST, 5)


def test_a_path_without_its_parents_is_shown() -> None:
    rows, _ = tree([module("a.b.c")])
    assert [(row.depth, row.name, row.path) for row in rows] == [(0, "c", "a.b.c")]


# -- readers ----------------------------------------------------------------------------------------------------------


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w[\w-]*): (#[0-9a-f]{3,6})", block))


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


SCHEMES = dict(zip(("light", "dark", "print"), map(variables, re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)), strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_has_contrast(scheme: str) -> None:
    """At least 4.5 to 1, as WCAG 2.2 asks of text (1.4.3), on every ground that it stands on; 3 to 1 for drawings (1.4.11)."""
    colours = SCHEMES[scheme]
    grounds = {"ground": ["ink", "soft", "link", "bad", "warn", "good", "blue", "orange", "green", "pink"], "raised": ["ink", "soft", "link"],
               "tint-bad": ["ink", "soft", "link", "bad"], "tint-warn": ["ink", "soft", "link", "warn"], "tint-good": ["ink", "soft", "link", "good"], "tint-none": ["ink", "soft", "link"]}  # fmt: skip
    for ground, texts in grounds.items():
        for text in texts:
            assert contrast(colours[text], colours[ground]) >= 4.5, (ground, text)
    for line in ("blue", "orange", "green", "pink", "bad"):
        assert contrast(colours[line], colours["raised"]) >= 3.0, line


def test_a_screen_reader_finds_its_way(document: Build, outline: Any) -> None:
    page = html.render(document())
    tags = outline(page).tags
    levels = [int(tag[1]) for tag, *_ in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    names = [tag for tag, *_ in tags]
    assert names.count("caption") == names.count("table")
    assert names.count("main") == names.count("header") == names.count("footer") == names.count("nav") == 1
    assert all("scope" in attributes for tag, *attributes in tags if tag == "th")
    assert all({"role", "aria-label"} <= set(attributes) for tag, *attributes in tags if tag == "svg")
    assert '<html lang="en">' in page
    for block in re.findall(r"<details.*?<summary>", page, re.DOTALL):
        assert block.rstrip().endswith("<summary>"), "a fold says what it holds"


def test_nothing_comes_from_elsewhere(document: Build) -> None:
    page = html.render(document())
    assert "default-src 'none'" in page
    assert not re.search(
        r"<script|<link|<iframe|<img|<object|@import|@font-face|url\((?!#)|\son\w+=|javascript:|https?://", page
    )
