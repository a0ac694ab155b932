"""Two fingerprints of one contract, and what a reviewer must know of the difference."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ampcheck.baseline.changes import Change, Verdict
from ampcheck.baseline.fingerprint import Fingerprint, bits
from ampcheck.baseline.modules import compare_modules, compare_ops, listed
from ampcheck.registry import matches

__all__ = ["HEADROOM", "compare", "reevaluated"]

#: A headroom that has grown fails above this, and only if it has grown `GROWN` times. Of 220 correct first steps the largest was
#: 0.69 of the limit, so what two machines make of a correct step lies below it; a fault lies above 1, and then its check fails.
#: Growth alone says nothing: twelve small correct nets with eight seeds each stayed below 0.42, and one moved 170 times between seeds.
HEADROOM, GROWN = 0.75, 4.0
#: Moves are told from here on: below half of the limit nothing is suspicious (see `ampcheck.trace.deviations`).
TOLD = 0.5
#: Kinds of changes that a run which was cut short cannot tell.
_LATER = ("ops", "events", "state", "headroom")
_ENVIRONMENT = {"device": "device", "card": "card", "torch": "torch", "tf32": "TF32"}
_WORDS = {"scaler_step": "scaler.step", "optimizer_step": "optimizer.step", "unscale": "unscale_", "zero_grad": "zero_grad"}


def reevaluated(base: Fingerprint, now: Fingerprint) -> str | None:
    """Why the two were not measured under the same conditions; `None` if they were."""
    a, b = base["environment"], now["environment"]
    moved = [f"{word} {a.get(k) or 'none'} -> {b.get(k) or 'none'}" for k, word in _ENVIRONMENT.items() if a.get(k) != b.get(k)]
    return ", ".join(moved) or None


def compare(
    base: Fingerprint, now: Fingerprint, accepted: Mapping[str, str] | None = None, narrowed: Sequence[str] = ()
) -> list[Change]:
    """What has changed, what weighs most first.

    Args:
        base: what was agreed on.
        now: what was measured.
        accepted: ids of checks (or prefixes) and kinds of changes -> why they may change.
        narrowed: settings ("select", "dtypes") that the command line of this run narrows, which loosens nothing.

    Returns:
        No change for two equal fingerprints. On another card, device, torch or TF32 setting nothing that was measured fails;
        what the settings leave out does.
    """
    strict = now["settings"].get("strict", ())
    every = [*_findings(base, now, strict), *_judged(base, now), *_measured(base, now, strict)]
    if "AMP111" in now["findings"].keys() - base["findings"].keys():  # a step that raises did not get to the rest
        every = [change for change in every if change.kind not in _LATER]
    why = reevaluated(base, now)
    if why is not None:
        every = [change.told("measured anew") for change in every]
        every.insert(0, Change("environment", "info", f"measured anew, for the conditions have changed: {why}"))
    python = [f["environment"].get("python") for f in (base, now)]
    if python[0] != python[1]:
        every.append(Change("environment", "info", f"python {python[0]} -> {python[1]}"))
    every += _settings(base["settings"], {**now["settings"], **{name: base["settings"][name] for name in narrowed}})
    every = [_accepted(change, accepted or {}) for change in every]
    weight = ("worse", "new", "better", "info")
    return sorted(every, key=lambda c: weight.index(c.verdict))


def _accepted(change: Change, accepted: Mapping[str, str]) -> Change:
    """The change as information, if its kind, or each of the ids that it is about, is acknowledged."""
    if not change.fails:
        return change
    words = [
        next((w for w in accepted if w == name or (w.startswith("AMP") and matches(name, [w]))), "") for name in change.accept
    ]
    if change.kind in accepted:
        words = [change.kind]
    if not words or not all(words):
        return change
    reasons = ", ".join(dict.fromkeys(accepted[word] for word in words))
    return replace(change, verdict="info", text=f"accepted: {change.text} ({reasons})")


# -- findings ---------------------------------------------------------------------------------------------------------


def _findings(base: Fingerprint, now: Fingerprint, strict: Any) -> Iterator[Change]:
    old, new, xfail = base["findings"], now["findings"], now["settings"].get("xfail", {})
    for item in sorted(old.keys() | new.keys()):
        id, before, after = item.split()[0], old.get(item), new.get(item)
        accept = (id,)
        if before == after:
            continue
        if before is None and after == "failed":
            yield Change("finding", "new", f"{item} is new", id, accept)
        elif before is None and after == "warned":
            yield Change("finding", "info", f"{item} is new, a warning", id, accept)
        elif before is None:
            yield Change("finding", "info", f"{item} is new, an expected failure: {xfail.get(id, '')}", id, accept)
        elif after is None and _unjudged(item, now):
            yield Change("finding", "info", f"{item} was found before and cannot be judged now", id)
        elif after is None:
            mended = f"{item} is mended"
            yield Change("finding", "better", f"{mended}: remove its xfail" if id in xfail else mended, id)
        elif before == "warned" and after == "failed":
            yield Change("finding", "worse", f"{item} was a warning and is an error now", id, accept)
        else:
            yield Change("finding", "info", f"{item}: {before} -> {after}", id)


def _unjudged(item: str, now: Fingerprint) -> bool:
    id, _, policy = item.partition(" ")
    dtypes = now["settings"]["dtypes"]
    return id not in " ".join(now["judged"].values()).split() or bool(policy and dtypes is not None and policy not in dtypes)


def _judged(base: Fingerprint, now: Fingerprint) -> Iterator[Change]:
    """Checks that reached a verdict and do not any more."""
    left = {f: set(ids.split()) for f, ids in now["judged"].items()}
    lost = sorted(id for f, ids in base["judged"].items() for id in ids.split() if id not in left.get(f, ()))
    lost = [id for id in lost if not matches(id, now["settings"].get("ignore", ()))]
    families = ("1", "2")
    if any(base["judged"].get(f, "AMP111") != "AMP111" for f in families) and not any(
        left.get(f, set()) - {"AMP111"} for f in families
    ):
        yield Change("judged", "worse", "nothing of the order of calls and of the scaler could be judged any more")
    elif lost:
        yield Change("judged", "info", f"not judged any more: {listed(lost, 8)}")


# -- what was measured ------------------------------------------------------------------------------------------------


def _measured(base: Fingerprint, now: Fingerprint, strict: Any) -> Iterator[Change]:
    ids = ("AMP601",) if strict is True or (not isinstance(strict, bool) and matches("AMP601", strict)) else ()
    modules = list(compare_modules(base["modules"], now["modules"], ids))
    yield from modules
    yield from compare_ops(base["ops"], now["ops"], any(change.kind == "ops" for change in modules))
    worse = any(i not in base["findings"] and i[3] in "12" for i in now["findings"])
    yield from _events(base["events"], now["events"], worse)
    yield from _state(base["state"], now["state"])
    yield from _headroom(base["headroom"], now["headroom"])


def _events(base: Sequence[str], now: Sequence[str], explains: bool) -> Iterator[Change]:
    """How the order of an iteration changed. Order is judged by its effect: it fails only beside a finding that it explains."""
    verdict: Verdict = "worse" if explains else "info"
    kept = set(base) & set(now)
    old, new = [i for i in base if i not in kept], [i for i in now if i not in kept]
    if not old and not new:
        return
    if not old or not new:  # an iteration more or less: compare with the nearest that stays
        rest, kinds = (new or old), "new" if new else "gone"
        for one in rest:
            yield Change("events", "info", f"an iteration that is {kinds}: {one}", one.split(", ")[0])
        return
    for one in new:
        nearest = max(old, key=lambda other: difflib.SequenceMatcher(None, other, one, autojunk=False).ratio())
        text, subject = _moves(nearest.split(", "), one.split(", "))
        yield Change("events", verdict, text, subject)


def _word(event: str) -> str:
    name, _, which = event.partition(" ")
    return f"{_WORDS.get(name, name)} {which}".strip()


def _moves(a: list[str], b: list[str]) -> tuple[str, str]:
    """`unscale_ moved after clip`, where one event has moved; else both orders."""
    both = f"the order of an iteration changed: {', '.join(a)} -> {', '.join(b)}"
    if sorted(a) == sorted(b):
        # the event that restores the order if it is put elsewhere; `clip` last, for others are told to have moved past it
        for at in sorted(range(len(b)), key=lambda i: (b[i] != "unscale", b[i].startswith("clip"), i)):
            rest, event = b[:at] + b[at + 1 :], b[at]
            for to in range(len(b)):
                if to != at and [*rest[:to], event, *rest[to:]] == a:
                    past, how = (b[at + 1], "before") if to > at else (b[at - 1], "after")
                    return f"{_word(event)} moved {how} {_word(past)}", past if past.startswith("clip") else event
        return both, b[0]
    gone = [e for e in a if e not in b]
    added = [e for e in b if e not in a]
    without = [e for e in a if e in b] == [e for e in b if e in a]
    if without and (gone or added):
        told = [f"{_word(e)} is gone (it followed {_word(a[a.index(e) - 1]) if a.index(e) else 'nothing'})" for e in gone]
        told += [f"{_word(e)} is new, after {_word(b[b.index(e) - 1]) if b.index(e) else 'nothing'}" for e in added]
        return "; ".join(told), (added or [b[0]])[0]
    return both, b[0]


def _state(base: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    """Optimizer state, a line for each optimizer whose slots changed; 16 bits where there were 32 fail."""
    for name in sorted(k for k in base.keys() & now.keys() if " " not in k):
        slots = {k.partition(" ")[2]: k for k in base.keys() | now.keys() if k.startswith(f"{name} ")}
        parts: list[str] = []
        worse = False
        for slot, key in sorted(slots.items()):
            a, b = base.get(key), now.get(key)
            if a == b:
                continue
            if a is None or b is None:
                parts.append(f"{slot} is {'new' if a is None else 'gone'}")
            elif a["dtype"] != b["dtype"]:
                parts.append(f"{slot}: {a['dtype']} -> {b['dtype']}")
                worse |= 0 < _least(b["dtype"]) < _least(a["dtype"])
            else:
                parts.append(f"{slot}: {a['bytes']:g} -> {b['bytes']:g} bytes")
        a, b = base[name], now[name]
        if a["dtype"] != b["dtype"]:
            parts.append(f"its parameters: {a['dtype']} -> {b['dtype']}")
        if parts:
            head = f"optimizer state of {name}"
            if a["bytes"] != b["bytes"]:
                head += f" {a['bytes']:g} -> {b['bytes']:g} bytes a parameter"
            yield Change("state", "worse" if worse else "info", f"{head} ({', '.join(parts)})")
    for name in sorted(k for k in base.keys() ^ now.keys() if " " not in k):
        yield Change("state", "info", f"the optimizer {name} is {'new' if name in now else 'gone'}")


def _least(dtypes: str) -> int:
    return min((bits(d) for d in dtypes.split("+")), default=0)


def _headroom(base: Mapping[str, float], now: Mapping[str, float]) -> Iterator[Change]:
    for name in sorted(base.keys() & now.keys()):
        a, b = base[name], now[name]
        if b > HEADROOM and b >= GROWN * a:
            yield Change("headroom", "worse", f"parity headroom of the {name} {a:g} -> {b:g} of what rounding allows")
        elif max(a, b) >= TOLD and max(a, b) >= GROWN * min(a, b):
            yield Change("headroom", "info", f"parity headroom of the {name} {a:g} -> {b:g} of what rounding allows")


# -- settings ---------------------------------------------------------------------------------------------------------


def _settings(base: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    """What the settings let through that they did not, which a change must say aloud; and what they hold to now."""

    def loosened(ids: Sequence[str], what: str) -> Iterator[Change]:
        if ids:
            verb = "are" if len(ids) > 1 else "is"
            yield Change("settings", "worse", f"loosened: {listed(ids, 12)} {verb} {what}", ids[0], tuple(ids))

    def tightened(text: str) -> Change:
        return Change("settings", "info", f"tightened: {text}")

    ignored = [i for i in now["ignore"] if i not in base["ignore"]]
    for id in ignored:
        yield from loosened([id], "now ignored")
    for id, reason in now["xfail"].items():
        if id not in base["xfail"] and id not in base["ignore"]:
            yield from loosened([id], f"now expected to fail ({reason})")
    if now["select"] is not None:
        lost = [i for i in base["select"] or _all_ids(now) if i not in now["select"] and i not in base["ignore"]]
        yield from loosened(lost, "not selected any more")
    if base["dtypes"] is not None and now["dtypes"] != base["dtypes"]:
        gone = [d for d in base["dtypes"] if d not in (now["dtypes"] or ())]
        yield from loosened(gone, "not judged any more")
    yield from loosened(_fewer(base["strict"], now["strict"]), "not strict any more")
    if heeded := [i for i in base["ignore"] if i not in now["ignore"]]:
        yield tightened(f"{listed(heeded)} no longer ignored")
    if fewer := [i for i in base["xfail"] if i not in now["xfail"]]:
        yield tightened(f"{listed(fewer)} no longer expected to fail")


def _all_ids(now: Mapping[str, Any]) -> list[str]:
    from ampcheck.registry import load_checks

    return [id for id in load_checks() if id not in now["ignore"]]


def _fewer(base: Any, now: Any) -> list[str]:
    if now is True or not base:
        return []
    if base is True:
        return ["strict"]
    return [id for id in base if id not in (now or ())]
