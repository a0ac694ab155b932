"""The published schema: it describes every key, real reports keep to it, and our own reader of it agrees with a library."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampcheck.errors import UsageError
from ampcheck.findings import ContractReport, Cost, Finding, Location, Report, Verdict
from ampcheck.report import json as json_report
from ampcheck.report.annotations import commands
from ampcheck.report.formats import FORMATS, render
from ampcheck.report.schema import KEYWORDS, LARGEST, check, faults, schema

Build = Callable[..., dict[str, Any]]
VALIDATOR = jsonschema.Draft202012Validator(schema())
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def rules(rule: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield place, rule
    for key in ("properties", "$defs"):
        for name, inner in rule.get(key, {}).items():
            yield from rules(inner, f"{place}.{name}")
    for key in ("items", "additionalProperties"):
        if key in rule:
            yield from rules(rule[key], f"{place}.{key}")


def test_it_is_a_schema_with_a_name() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema()["$id"] == "urn:ampcheck:schema:report-v1"


@pytest.mark.parametrize(("place", "rule"), [pytest.param(*entry, id=entry[0] or "document") for entry in rules(schema())])
def test_every_key_is_described_in_words_that_we_read(place: str, rule: dict[str, Any]) -> None:
    assert set(rule) - {"$schema", "$id", "$defs", "title", "description"} <= set(KEYWORDS)
    if ".properties" in place or place.rpartition(".")[2] not in ("items", "additionalProperties"):
        assert rule.get("description", "").endswith(".")
    if "properties" in rule and "$ref" not in rule:
        assert set(rule.get("required", ())) <= set(rule["properties"])


def test_a_document_with_one_of_everything_is_valid(document: Build) -> None:
    VALIDATOR.validate(document())
    assert list(faults(document())) == []


def test_what_is_written_is_valid_and_described(document: Build) -> None:
    contract, where = "t.py::net", Location("/project/t.py", 3, "step")
    found = Finding("AMP102", "clip", "error", contract, "e", "s", "f", location=where, evidence={"x": float("inf")})
    verdicts = [
        Verdict(contract, "AMP102", "clip", "failed", finding=found, follows="AMP101"),
        Verdict(contract, "AMP101", "scale", "passed"),
    ]
    facts = {"profile": document()["contracts"][0]["profile"], "headroom": {"as-written": {"gradient": float("inf")}}}
    report = Report({"torch": "2"}, [ContractReport(contract, "cpu", verdicts, [found], [Cost("natural", 1, 6, 0.5)], facts)])
    data = json.loads(json_report.render(json_report.document(report, Path("/project"))))
    VALIDATOR.validate(data)
    assert set(data) <= set(schema()["properties"])
    for name in ("findings", "items", "costs", "contracts"):
        for entry in data[name]:
            assert set(entry) <= set(schema()["properties"][name]["items"]["properties"]), name


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(),
    st.sampled_from([1.0, 2.5]),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just([{}]),
)


@st.composite
def edited(draw: st.DrawFn, document: Any) -> Any:
    """The document with a value somewhere replaced or removed."""
    whole = {"": copy.deepcopy(document)}
    parent: Any = whole
    key: Any = ""
    while isinstance(parent[key], (dict, list)) and parent[key] and draw(st.integers(0, 5)):
        parent = parent[key]
        key = draw(st.sampled_from(sorted(parent) if isinstance(parent, dict) else range(len(parent))))
    if draw(st.booleans()):
        parent[key] = draw(WRONG)
    else:
        del parent[key]
    return whole.get("", {})


@SHARED
@given(st.data())
def test_our_reader_agrees_with_the_library(document: Build, data: st.DataObject) -> None:
    changed = data.draw(edited(document()))
    assert (list(faults(changed)) == []) == VALIDATOR.is_valid(changed)


@SHARED
@given(st.data())
def test_every_format_shows_what_the_schema_admits(document: Build, undrawn: None, data: st.DataObject) -> None:
    changed = document()
    for _ in range(3):
        tried = data.draw(edited(changed))
        changed = tried if not list(faults(tried)) else changed
    for name in FORMATS:
        assert render(changed, name)
    list(commands(changed))


@pytest.mark.parametrize(("line", "valid"), [(3, True), (3.0, True), (2.5, False), (True, False), ("3", False), (None, False)])
def test_a_whole_number_may_have_a_point(document: Build, line: Any, valid: bool) -> None:
    changed = document()
    changed["findings"][0]["location"] = {"file": "a", "line": line, "function": "f"}
    assert VALIDATOR.is_valid(changed) is valid
    assert (list(faults(changed)) == []) is valid


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("version",), 2, "version is not 1"),
        (("items", 0, "outcome"), "maybe", "items[0].outcome is not one of passed, failed, warned, inconclusive, not-run, xfailed"),
        (("items", 0, "check"), "AMP1", "items[0].check is not written as ^AMP[1-9][0-9][0-9]$"),
        (("costs", 0, "calls"), -1, "costs[0].calls is less than 0"),
        (("changes", 0), [], "changes[0] is not of type object"),
        (("contracts", 0, "profile", "layers", "as-written", 0, "allowed"), None, "contracts[0].profile.layers.as-written[0].allowed is not of type number or string"),
    ],
)  # fmt: skip
def test_each_rule_is_kept(document: Build, where: tuple[Any, ...], value: Any, said: str) -> None:
    changed: Any = document()
    parent = changed
    for key in where[:-1]:
        parent = parent[key]
    parent[where[-1]] = value
    assert list(faults(changed)) == [said]
    assert not VALIDATOR.is_valid(changed)


def test_a_refusal_names_the_place(document: Build) -> None:
    changed = document()
    changed["contracts"][0]["profile"]["scale"][1]["skipped"] = "no\x1b[31m"
    with pytest.raises(UsageError) as refused:
        check(changed, "report.json")
    assert str(refused.value) == "report.json: refused: contracts[0].profile.scale[1].skipped is not of type boolean"


def test_a_number_that_no_float_holds_is_refused(document: Build) -> None:
    changed = document()
    changed["costs"][0]["seconds"] = LARGEST * 10
    with pytest.raises(UsageError, match="larger than any"):
        check(changed)
