"""A report that has one of everything, whose texts a test chooses."""

from __future__ import annotations

import html.parser
from collections.abc import Callable
from typing import Any

import pytest

from ampcheck.report import pictures

#: The texts of a report that nobody wrote with bad intent, by number.
Text = Callable[[int], str]


def build(text: Text = lambda n: f"text {n}") -> dict[str, Any]:
    """A document in which every foreign text is `text(n)`, with an n of its own."""
    red = {"contract": f"tests/test_amp.py::{text(1)}", "device": "cpu"}
    green = {"contract": f"tests/test_amp.py::{text(2)}", "device": "cuda"}
    blamed = {"file": f"src/{text(3)}.py", "line": 9, "function": text(4)}
    outside = {"file": f"../{text(5)}.py", "line": 3, "function": text(6)}

    def finding(id: str, level: str, where: Any, first: int, contract: dict[str, str] = red) -> dict[str, Any]:
        told = {"expected": text(first), "seen": text(first + 1), "fix": text(first + 2), "reproduce": text(first + 3)}
        facts = {"slug": text(first + 80), "policy": "as-written", "evidence": {text(first + 4): text(first + 5)}}
        return {"id": id, "level": level, "location": where, **contract, **told, **facts}

    def item(check: str, outcome: str, reason: str = "", contract: dict[str, str] = red, **more: Any) -> dict[str, Any]:
        names = {"check": check, "slug": "a-rule", "policy": "as-written"}
        return {**contract, **names, "outcome": outcome, "reason": reason, "seconds": 0.25, **more}

    slots = {text(40): {"dtype": "float32", "tensors": 2, "elements": 10, "bytes": 40}}
    state = {"optimizer": text(41), "optimizers": 1, "elements": 10, "slots": slots, "bytes per parameter": 4.0}
    module = {"kind": text(42), "parameters": "float32", "forward": {"float16": 6}, "line": f"{text(43)}:3"}
    op = {"family": text(45), "phase": "forward", "dtypes": ["float16"], "autocast": "off", "count": 6, "flops": 10.0}
    profile = {
        "scale": [{"call": n, "scaler": 0, "scale": 2.0**n, "skipped": n == 2} for n in (4, 3, 2)],
        "gradients": [{"call": n, "optimizer": 0, "norm": n or None, "peak": 0.5} for n in range(3)],
        "modules": [{"module": "", **module}, {"module": text(44).replace(".", ","), **module}],
        "ops": [{"op": text(46), "module": text(47), "line": None, **op}],
        "events": [[text(48), "update"]],
        "places": {"update": f"{text(49)}:7"},
        "layers": {"as-written": [{"name": text(50), "measured": 2.0, "allowed": 1.0}]},
        "first_nonfinite": {"call": 1, "op": text(51), "module": text(52), "phase": "forward", "dtype": "float16", "kind": "inf", "count": 1, "total": 2, "effect": text(53), "line": None},
    }  # fmt: skip
    change = {"kind": "modules", "location": None, **red}
    return {
        "version": 1,
        "environment": {"torch": text(60), "device": "cpu", "tf32": {"matmul": False}},
        "findings": [
            finding("AMP102", "error", blamed, 10),
            finding("AMP103", "error", None, 16),
            finding("AMP112", "warning", outside, 22, green),
        ],
        "items": [
            item("AMP102", "failed", text(11)),
            item("AMP101", "failed", "follows", follows="AMP102"),
            item("AMP103", "failed", text(17)),
            item("AMP104", "failed", text(30)),
            item("AMP110", "xfailed", text(31)),
            item("AMP112", "warned", text(23), green),
            item("AMP201", "inconclusive", text(32), green),
            item("AMP202", "not-run", text(33), green),
            item("AMP203", "passed", "", green),
        ],
        "costs": [{**red, "scenario": text(34), "builds": 1, "calls": 6, "seconds": 0.5}],
        "optimizer_state": [{**red, **state}],
        "contracts": [
            {**red, "judged": True, "notes": [text(35)], "evidence": text(38), "headroom": {text(54): {text(55): 0.25, text(56): "inf"}}, "settings": {"ignore": [text(36)], "xfail": {"AMP110": text(37)}}, "profile": profile},
            {**green, "judged": False, "notes": [], "settings": {}, "profile": {}},
        ],
        "changes": [
            {**change, "verdict": "worse", "text": text(70), "location": blamed},
            {**change, "verdict": "better", "text": text(71)},
        ],
        "baseline": {"path": text(72), "revision": None, "environment": {}, "reevaluated": text(73)},
    }  # fmt: skip


@pytest.fixture(scope="session")
def document() -> Callable[..., dict[str, Any]]:
    return build


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra: tables in place of pictures, and much faster."""
    monkeypatch.setattr(pictures, "available", lambda: False)


class Outline(html.parser.HTMLParser):
    """The tags of a page with the names of their attributes, in order, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, ...]] = []
        self.values: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))
        self.values |= {value or "" for name, value in attrs if name != "aria-label"}

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")


@pytest.fixture(scope="session")
def outline() -> type[Outline]:
    return Outline
