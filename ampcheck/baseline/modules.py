"""What changed in the modules of a contract: their dtypes, and where they compute."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ampcheck.baseline.changes import Change, Verdict
from ampcheck.baseline.fingerprint import OUTSIDE, bits

__all__ = ["compare_modules", "compare_ops", "listed", "pairs"]

Row = Mapping[str, str]
Rows = Mapping[str, Row]
_PLURAL = {"matmul": "matmuls", "norm": "norms", "loss": "losses", "sensitive": "sensitive ops", "reduction": "reductions"}
#: As many modules have a line of their own.
_EACH = 3
_DESCRIPTIVE = ("kind", "parameters", "returns")


def listed(names: Iterable[str], most: int = 6) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def pairs(base: Rows, now: Rows) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Which module of now is which of the base.

    The same path is the same module. Of the rest, modules that are the same in everything but the path are paired first, then
    those of one class, each with the most similar path: a rename changes nothing else.

    Returns:
        Pairs of paths; paths that are gone; paths that are new.
    """
    found = [(name, name) for name in base if name in now]
    gone, added = sorted(base.keys() - now.keys() - {OUTSIDE}), sorted(now.keys() - base.keys() - {OUTSIDE})
    for exactly in (True, False):
        likely = [
            (-difflib.SequenceMatcher(None, old, new, autojunk=False).ratio(), old, new)
            for old in gone
            for new in added
            if base[old] == now[new] or (not exactly and base[old].get("kind", "") == now[new].get("kind"))
        ]
        for _, old, new in sorted(likely):
            if old in gone and new in added:
                found.append((old, new))
                gone.remove(old)
                added.remove(new)
    return sorted(found), gone, added


def compare_modules(base: Rows, now: Rows, strict: Iterable[str] = ()) -> Iterator[Change]:
    """The changes, those of parameters first.

    What fails: parameters that are kept in fewer bits, and ops that the code had kept out of autocast (an island) and that run
    in 16 bits now. All else that moves is judged by the checks and only told here: autocast may rightly cover more. Ops that left
    16 bits weigh what AMP601 weighs.
    """
    paired, gone, added = pairs(base, now)
    moved: dict[tuple[str, str, str], list[tuple[str, bool]]] = {}
    renamed = [(old, new) for old, new in paired if old != new]
    explained: set[str] = set()
    yield from _parameters([(old, new, base[old].get("parameters", ""), now[new].get("parameters", "")) for old, new in paired])
    for old, new in paired:
        a, b = base[old], now[new]
        if a.get("kind") != b.get("kind"):
            yield Change("modules", "info", f"{new}: {a.get('kind', 'nothing')} -> {b.get('kind', 'nothing')}", new)
        for family in sorted(set(a) | set(b)):
            if family not in _DESCRIPTIVE and a.get(family) and b.get(family) and a[family] != b[family]:
                key = family, _plain(a[family]), _plain(b[family])
                moved.setdefault(key, []).append((new, "island" in a[family]))
                explained.add(new)
    yield from _moved(moved, "AMP601" in strict)
    returned: dict[tuple[str, str], list[str]] = {}
    for old, new in paired:
        before, after = base[old].get("returns", ""), now[new].get("returns", "")
        if before and after and before != after and new not in explained:
            returned.setdefault((before, after), []).append(new)
    for (before, after), names in sorted(returned.items()):
        yield Change("modules", "info", f"what is returned: {before} -> {after}: {listed(names)}", names[0])
    if renamed:
        yield Change("modules", "info", f"renamed: {listed(f'{old} -> {new}' for old, new in renamed)}", renamed[0][1])
    if gone:
        yield Change("modules", "info", f"gone: {listed(gone)}")
    if added:
        yield Change("modules", "info", f"added: {listed(f'{n} ({_kind(now[n])})' for n in added)}", added[0])


def _kind(row: Row) -> str:
    return ", ".join(filter(None, (row.get("kind", ""), row.get("parameters", "")))) or "ops"


def _plain(dtypes: str) -> str:
    return "+".join(dict.fromkeys(d.partition(" ")[0] for d in dtypes.split("+")))


def _least(dtypes: str) -> int:
    return min((bits(d.partition(" ")[0]) for d in dtypes.split("+")), default=0)


def _weight(a: str, b: str) -> Verdict:
    if not _least(a) or not _least(b):
        return "info"
    return "worse" if _least(b) < _least(a) else "better" if _least(b) > _least(a) else "info"


def _parameters(rows: Iterable[tuple[str, str, str, str]]) -> Iterator[Change]:
    """A line a module; one for all of them where there are many."""
    moved: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for old, new, a, b in rows:
        if a != b:
            moved.setdefault((a, b), []).append((new if old == new else f"{new} (was {old})", new))
    for (a, b), names in sorted(moved.items()):
        change = f"{a} -> {b}" if a and b else f"parameters in {b} now" if b else "no parameters now"
        weight = _weight(a, b) if a and b else "info"
        if len(names) <= _EACH:
            for name, path in names:
                yield Change("modules", weight, f"{name}: {change}", path)
        else:
            shown = listed(name for name, _ in names)
            yield Change("modules", weight, f"the parameters of {len(names)} modules: {change}: {shown}", names[0][1])


def _moved(moved: Mapping[tuple[str, str, str], list[tuple[str, bool]]], strict: bool) -> Iterator[Change]:
    """Ops that moved between dtypes, those of one kind in one line: `3 matmuls left 16 bits (float16 -> float32): fc1, fc2, head`."""
    for (family, a, b), where in sorted(moved.items()):
        for island in (True, False):
            names = [name for name, was in where if was is island]
            if not names:
                continue
            what = f"{len(names)} {_PLURAL.get(family, family) if len(names) > 1 else family}"
            low, high = _least(a) in (8, 16), _least(b) in (8, 16)
            verdict: Verdict = "info"
            if low and not high:
                how, verdict = "left 16 bits", "worse" if strict and family == "matmul" else "info"
            elif high and not low:
                how, verdict = "entered 16 bits", "worse" if island else "info"
                how += ", an island of full precision before" if island else ""
            else:
                how = "changed" if a != b else "left an island of full precision"
            change = f" ({a} -> {b})" if a != b else f" ({a})"
            yield Change("ops", verdict, f"{what} {how}{change}: {listed(names)}", names[0])


def compare_ops(base: Mapping[str, Any], now: Mapping[str, Any], told: bool) -> Iterator[Change]:
    """What the census of places says, where no module has said it: the share of FLOPs in 16 bits."""
    for name in sorted(base.keys() & now.keys()):
        if name.endswith("share") and abs(base[name] - now[name]) >= 0.05 and not told:
            yield Change("ops", "info", f"{name} {base[name]:.0%} -> {now[name]:.0%}")
