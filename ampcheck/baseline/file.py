"""The baseline file: JSON, sorted, one fact a line, so that a change of it is read in review and merges like code.

It is committed, so it may have been edited, merged or cut off by anyone: what is not as it was written is refused with the
place and the way out, and nothing of it is ever executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ampcheck.baseline.fingerprint import Fingerprint
from ampcheck.errors import UsageError

__all__ = ["NAME", "VERSION", "read", "text_of"]

NAME = "ampcheck-baseline.json"
VERSION = 1
#: Bytes; a baseline of a thousand contracts has a tenth of it.
LARGEST = 32 * 1024 * 1024
AGAIN = "restore it from version control, or write it anew with --ampcheck-update-baseline"


def text_of(contracts: Mapping[str, Fingerprint]) -> str:
    """The file's text; the same for the same facts, in whatever order they come."""
    lines = ["{", ' "version": 1,', ' "contracts": {']
    for position, (name, facts) in enumerate(sorted(contracts.items())):
        lines.append(f"  {_short(name)}: {{")
        for at, (key, value) in enumerate(sorted(facts.items())):
            comma = "," if at < len(facts) - 1 else ""
            lines += _fact(key, value, comma)
        lines.append("  }," if position < len(contracts) - 1 else "  }")
    return "\n".join([*lines, " }", "}", ""])


def _short(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _fact(key: str, value: Any, comma: str) -> list[str]:
    if not value or not isinstance(value, (dict, list)):
        return [f"   {_short(key)}: {_short(value)}{comma}"]
    if isinstance(value, dict):
        rows, (opened, closed) = [f"{_short(k)}: {_short(v)}" for k, v in sorted(value.items())], "{}"
    else:
        rows, (opened, closed) = [_short(v) for v in value], "[]"
    inner = [f"    {row}{',' if at < len(rows) - 1 else ''}" for at, row in enumerate(rows)]
    return [f"   {_short(key)}: {opened}", *inner, f"   {closed}{comma}"]


def read(path: Path) -> dict[str, Fingerprint]:
    """The entries of a baseline file.

    Args:
        path: the file.

    Returns:
        Contract and device (see `key_of`) -> fingerprint.

    Raises:
        UsageError: if it is not there, or not as it was written: it names the file, the key and the fix.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path}: larger than {LARGEST // 2**20} MiB, so it is no baseline; {AGAIN}")
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such baseline; write one with --ampcheck-update-baseline") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the baseline cannot be read: {error}; {AGAIN}") from None
    if any(line.startswith(("<<<<<<<", ">>>>>>>")) for line in text.splitlines()):
        raise UsageError(
            f"{path}: there are conflict markers of a merge in it; resolve them, and {AGAIN.partition(', or ')[2]}"
        )
    try:
        data = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except _Refused as error:
        raise UsageError(f"{path}: {error}; {AGAIN}") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply to be a baseline; {AGAIN}") from None
    except ValueError as error:
        raise UsageError(f"{path}: it is not whole, or was edited by hand: {error}; {AGAIN}") from None
    return _checked(data, path)


class _Refused(ValueError):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Refused(f"{_shown(key)} stands in it twice")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise _Refused(f"{name} is no number of a baseline")


def _shown(value: object, longest: int = 120) -> str:
    text = ascii(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def _checked(data: Any, path: Path) -> dict[str, Fingerprint]:
    def refuse(key: str, problem: str) -> UsageError:
        return UsageError(f"{path}: {key}: {problem}; {AGAIN}")

    if not isinstance(data, dict) or "version" not in data:
        raise refuse("version", "there is none, so it is no baseline")
    version = data["version"]
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        raise UsageError(
            f"{path}: version: {version} is newer than {VERSION}, the one that this ampcheck reads; install the ampcheck that wrote it"
        )
    if version != VERSION or isinstance(version, bool):
        raise refuse("version", f"{_shown(version)} is not {VERSION}")
    for key in sorted(data.keys() - {"version", "contracts"}):
        raise refuse(_shown(key), "there is no such key in a baseline")
    contracts = data.get("contracts")
    if not isinstance(contracts, dict):
        raise refuse("contracts", "not an object")
    for name, facts in contracts.items():
        if not name.endswith("]") or " [" not in name:
            raise refuse(_shown(name), "not the name of a contract and a device, as in 'tests/test_amp.py::mlp [cpu]'")
        if not isinstance(facts, dict):
            raise refuse(_shown(name), "not an object")
        for key in [*sorted(facts.keys() - FACTS.keys()), *sorted(FACTS.keys() - facts.keys())]:
            raise refuse(f"{_shown(name)}: {_shown(key)}", "missing" if key in FACTS else "there is no such fact")
        for key, valid in FACTS.items():
            if problem := valid(facts[key]):
                raise refuse(f"{_shown(name)}: {_shown(key)}{problem}", "not a value that was written there")
    return contracts


# -- what stands where: each tells the key whose value is wrong, or nothing -------------------------------------------


def _of(valid: Callable[[Any], bool]) -> Callable[[Any], str]:
    def each(value: Any) -> str:
        if not isinstance(value, dict):
            return ": all of it"
        return next((f": {_shown(key)}" for key, inner in value.items() if not valid(inner)), "")

    return each


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _row(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_text, value.values()))


def _slot(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"bytes", "dtype"} and _number(value["bytes"]) and _text(value["dtype"])


def _outcome(value: Any) -> bool:
    return value in ("failed", "warned", "xfailed")


def _settings(value: Any) -> str:
    if not isinstance(value, dict):
        return ": all of it"
    listed: dict[str, Callable[[Any], bool]] = {
        "ignore": _texts,
        "select": lambda v: v is None or _texts(v),
        "dtypes": lambda v: v is None or _texts(v),
        "strict": lambda v: isinstance(v, bool) or _texts(v),
        "xfail": _row,
    }
    wrong = [
        key
        for key in sorted(value.keys() | listed.keys())
        if key not in listed or key not in value or not listed[key](value[key])
    ]
    return f": {_shown(wrong[0])}" if wrong else ""


FACTS: dict[str, Callable[[Any], str]] = {
    "environment": _of(_text),
    "events": lambda value: "" if _texts(value) else ": all of it",
    "findings": _of(_outcome),
    "headroom": _of(_number),
    "judged": _of(_text),
    "modules": _of(_row),
    "ops": _of(_number),
    "settings": _settings,
    "state": _of(_slot),
}
