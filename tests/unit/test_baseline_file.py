"""The baseline file: what is written is read, and what was not written so is refused with the place and the way out."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.baseline.file import FACTS, read, text_of
from ampcheck.errors import UsageError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.floats(0.0, 1e6, allow_nan=False)
settings = st.fixed_dictionaries(
    {
        "ignore": st.lists(texts, max_size=2),
        "select": st.none() | st.lists(texts, max_size=2),
        "dtypes": st.none() | st.lists(st.sampled_from(["float16", "bfloat16"]), max_size=2),
        "strict": st.booleans() | st.lists(texts, max_size=2),
        "xfail": st.dictionaries(texts, texts, max_size=2),
    }
)
fingerprints = st.fixed_dictionaries(
    {
        "environment": st.dictionaries(texts, texts, max_size=3),
        "events": st.lists(texts, max_size=3),
        "findings": st.dictionaries(texts, st.sampled_from(["failed", "warned", "xfailed"]), max_size=3),
        "headroom": st.dictionaries(texts, numbers, max_size=3),
        "judged": st.dictionaries(texts, texts, max_size=3),
        "modules": st.dictionaries(texts, st.dictionaries(texts, texts, max_size=3), max_size=3),
        "ops": st.dictionaries(texts, numbers, max_size=3),
        "settings": settings,
        "state": st.dictionaries(texts, st.fixed_dictionaries({"bytes": numbers, "dtype": texts}), max_size=2),
    }
)
baselines = st.dictionaries(texts.map(lambda t: f"t.py::{t} [cpu]"), fingerprints, max_size=3)

ONE: dict[str, Any] = {
    "environment": {"torch": "2.13"},
    "events": ["scale, backward"],
    "findings": {"AMP305": "warned"},
    "headroom": {"as-written gradient": 0.2},
    "judged": {"1": "AMP101"},
    "modules": {"fc1": {"kind": "Linear", "parameters": "float32"}},
    "ops": {"matmul forward float16": 2},
    "settings": {"ignore": [], "select": None, "dtypes": None, "strict": [], "xfail": {}},
    "state": {"AdamW": {"bytes": 8.0, "dtype": "float32"}},
}
NAME = "t.py::mlp [cpu]"


def shuffled(value: Any, seed: int) -> Any:
    """The same objects with their keys in another order."""
    if isinstance(value, dict):
        keys = list(value)
        random.Random(seed).shuffle(keys)
        return {key: shuffled(value[key], seed) for key in keys}
    return value


@given(baselines)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, baseline: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("baseline") / "b.json"
    path.write_text(text_of(baseline), "utf-8")
    assert read(path) == baseline


@given(baselines, st.integers(0, 99))
def test_the_text_does_not_depend_on_an_order(baseline: dict[str, Any], seed: int) -> None:
    assert text_of(shuffled(baseline, seed)) == text_of(baseline)


def test_one_fact_a_line(tmp_path: Path) -> None:
    text = text_of({NAME: ONE})
    assert '    "fc1": {"kind": "Linear", "parameters": "float32"}\n' in text
    assert text.isascii() and text.endswith("}\n")
    # a change of one fact is a change of one line
    other = json.loads(json.dumps(ONE))
    other["modules"]["fc1"]["parameters"] = "bfloat16"
    assert sum(a != b for a, b in zip(text.splitlines(), text_of({NAME: other}).splitlines(), strict=True)) == 1


def whole(**changes: Any) -> str:
    return json.dumps({"version": 1, "contracts": {NAME: {**ONE, **changes}}})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not whole"),
        (text_of({NAME: ONE})[:-40], "not whole"),
        ("[]", "version: there is none"),
        ("{}", "version: there is none"),
        ('{"version": 2, "contracts": {}}', "version: 2 is newer than 1"),
        ('{"version": true, "contracts": {}}', "version: True is not 1"),
        ('{"version": "1", "contracts": {}}', "version: '1' is not 1"),
        ('{"version": 1}', "contracts: not an object"),
        ('{"version": 1, "contracts": {}, "__class__": 1}', "'__class__': there is no such key"),
        ('{"version": 1, "contracts": {}, "contracts": {}}', "'contracts' stands in it twice"),
        ('{"version": 1, "contracts": {"mlp": {}}}', "not the name of a contract"),
        ('{"version": 1, "contracts": {"t.py::mlp [cpu]": []}}', "t.py::mlp [cpu]': not an object"),
        ('{"version": 1, "contracts": {"t.py::mlp [cpu]": {}}}', "missing"),
        (whole(extra=1), "'extra': there is no such fact"),
        (whole(findings={"AMP101": "passed"}), "'findings': 'AMP101': not a value"),
        (whole(headroom={"g": -1}), "'headroom': 'g': not a value"),
        (whole(headroom={"g": True}), "'headroom': 'g': not a value"),
        (whole(modules={"fc1": "float32"}), "'modules': 'fc1': not a value"),
        (whole(state={"AdamW": {"bytes": 1}}), "'state': 'AdamW': not a value"),
        (whole(events="scale"), "'events': all of it: not a value"),
        (whole(settings={**ONE["settings"], "ignore": "AMP1"}), "'settings': 'ignore': not a value"),
        (whole(settings={"ignore": []}), "'settings': 'dtypes': not a value"),
        (whole().replace("0.2", "NaN"), "NaN is no number"),
        (whole().replace("0.2", "9" * 5000), "not whole"),
        ("[" * 200_000, "nested too deeply"),
        ("<<<<<<< HEAD\n{}\n=======\n", "conflict markers of a merge"),
    ],
)  # fmt: skip
def test_what_was_not_written_so_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError) as refused:
        read(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert says in message
    assert "--ampcheck-update-baseline" in message or "install the ampcheck that wrote it" in message
    assert len(message) < 700


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such baseline; write one with"):
        read(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "b.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path)


def test_a_name_full_of_tricks_cannot_paint_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"version": 1, "contracts": {"\x1b[31m\u202e" * 500: {}}}), "utf-8")
    with pytest.raises(UsageError) as refused:
        read(path)
    assert "\x1b" not in str(refused.value) and "\u202e" not in str(refused.value)
    assert len(str(refused.value)) < 500 + len(str(path))


def test_every_fact_is_checked() -> None:
    assert FACTS.keys() == ONE.keys()
