"""The published schema of the JSON report, and a check of documents against it that needs no library.

The schema is `report-v1.json` beside this file, JSON Schema draft 2020-12; it keeps to the few keywords that are read here.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ampcheck.errors import UsageError
from ampcheck.report.text import one_line

__all__ = ["KEYWORDS", "check", "faults", "schema"]

#: What the schema may be written in.
KEYWORDS = ("$ref", "type", "const", "enum", "pattern", "minimum", "required", "properties", "additionalProperties", "items")
#: Numbers beyond this are refused: the widest floats that hold a measurement end before it.
LARGEST = 10**300
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer())),
}  # fmt: skip


@functools.cache
def schema() -> dict[str, Any]:
    """The schema of version 1."""
    text = importlib.resources.files(__package__).joinpath("report-v1.json").read_text("utf-8")
    return dict(json.loads(text))


def check(document: object, name: str = "the report") -> None:
    """Refuse what is not a report of version 1.

    Args:
        document: JSON data.
        name: what it is called in the message.

    Raises:
        UsageError: says which value is wrong, and what belongs there.
    """
    for fault in faults(document):
        raise UsageError(f"{name}: refused: {one_line(fault)}")


def faults(document: object) -> Iterator[str]:
    """Where a document departs from the schema: the place, and what belongs there."""
    yield from _faults(document, schema(), "")


def _faults(value: Any, rule: Mapping[str, Any], place: str) -> Iterator[str]:
    if "$ref" in rule:
        yield from _faults(value, schema()["$defs"][rule["$ref"].rpartition("/")[2]], place)
    types = rule.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(TYPES[name](value) for name in types):
        yield f"{place or 'the document'} is not of type {' or '.join(types)}"
        return
    if "const" in rule and (isinstance(value, bool) or value != rule["const"]):
        yield f"{place} is not {rule['const']!r}"
    if "enum" in rule and value not in rule["enum"]:
        yield f"{place} is not one of {', '.join(map(str, rule['enum']))}"
    if isinstance(value, str) and not re.search(rule.get("pattern", ""), value):
        yield f"{place} is not written as {rule['pattern']}"
    if TYPES["number"](value) and abs(value) > LARGEST:
        yield f"{place} is a number larger than any that is measured"
    elif TYPES["number"](value) and value < rule.get("minimum", value):
        yield f"{place} is less than {rule['minimum']}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, rule.get("items", {}), f"{place}[{index}]")
    if isinstance(value, Mapping):
        yield from (f"{place or 'the document'} has no {name!r}" for name in rule.get("required", ()) if name not in value)
        known = rule.get("properties", {})
        for name, item in value.items():
            inner = known.get(name, rule.get("additionalProperties", {}))
            yield from _faults(item, inner, f"{place}.{name}" if place else str(name))
