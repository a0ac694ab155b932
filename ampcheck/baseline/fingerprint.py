"""A contract in a few facts that repeat from run to run: what a baseline keeps of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ampcheck.findings import Verdict
from ampcheck.trace.ops import LOW

__all__ = ["OUTSIDE", "Fingerprint", "bits", "coarse", "environment_of", "fingerprint", "key_of"]

#: JSON data with the keys of `fingerprint`.
Fingerprint = dict[str, Any]
#: Families of the census that say where a module computes; casts follow from these.
_FAMILIES = ("matmul", "norm", "loss", "sensitive", "reduction")
_UNSET: dict[str, Any] = {"dtypes": None, "ignore": [], "select": None, "strict": [], "xfail": {}}
#: Entry of the ops that run outside every module.
OUTSIDE = "(outside modules)"


def key_of(contract: str, device: str) -> str:
    """What an entry is filed under: `tests/test_amp.py::mlp [cpu]`."""
    return f"{contract} [{device}]"


def bits(dtype: str) -> int:
    """Bits of a floating-point dtype by its name; 0 for others."""
    name = dtype.removeprefix("b").removeprefix("float")
    if name == dtype or not name[:1].isdigit():
        return 0
    return int(name.partition("_")[0])


def coarse(value: float) -> float:
    """The next of 0.01, 0.02, 0.05, 0.1, ... that is not smaller, with two digits: what differs less is the machine's doing."""
    if not math.isfinite(value) or value <= 0.01:
        return 0.01 if value <= 0.01 else 1000.0
    power = 10.0 ** math.floor(math.log10(value))
    step = next(s for s in (1.0, 2.0, 5.0, 10.0) if value <= s * power * (1 + 1e-9))
    return min(round(step * power, 2), 1000.0)


def environment_of(environment: Mapping[str, Any], device: str) -> dict[str, str]:
    """What numbers and kernels depend on: device, card, torch and Python without the last number, TF32 flags."""
    tf32 = environment.get("tf32", {})
    on = [name for name in sorted(tf32) if tf32[name]] if isinstance(tf32, Mapping) and device == "cuda" else []
    return {
        "card": str(environment.get("card", "")),
        "device": device,
        "python": ".".join(str(environment.get("python", "")).split(".")[:2]),
        "tf32": " ".join(on) or "off",
        "torch": ".".join(str(environment.get("torch", "")).split("+")[0].split(".")[:2]),
    }


def fingerprint(entry: Mapping[str, Any], verdicts: Iterable[Verdict], environment: Mapping[str, Any]) -> Fingerprint:
    """The facts of one contract on one device.

    Args:
        entry: its part of the document's `contracts`.
        verdicts: all of them, whatever was selected to be reported.
        environment: what it ran on.

    Returns:
        `environment`; `events` (the different iterations); `findings` (check and policy -> outcome); `headroom` (policy and
        quantity -> measured over allowed, coarsely); `judged` (family -> ids); `modules` (path -> class, dtypes of parameters and
        results, and dtypes by family of op; "island" marks what the code keeps out of autocast); `ops` (family, phase, dtype ->
        how many places; 16-bit share of the FLOPs); `settings`; `state` (optimizer and slot -> dtype, bytes a parameter).
    """
    profile = entry.get("profile") or {}
    verdicts = list(verdicts)
    return {
        "environment": environment_of(environment, str(entry["device"])),
        "events": _events(profile.get("events", ())),
        "findings": {_item(v): v.outcome for v in verdicts if _found(v)},
        "headroom": {
            f"{policy} {quantity}": coarse(float(value))
            for policy, quantities in entry.get("headroom", {}).items()
            for quantity, value in quantities.items()
        },
        "judged": _judged(verdicts),
        "modules": _modules(profile),
        "ops": _ops(profile.get("ops", ())),
        "settings": {**_UNSET, **entry.get("settings", {})},
        "state": _state(profile.get("state", ())),
    }


def _item(verdict: Verdict) -> str:
    return verdict.check if verdict.policy == "as-written" else f"{verdict.check} {verdict.policy}"


def _found(verdict: Verdict) -> bool:
    """Whether a fault was found: not what follows from another one, nor an excuse that has gone stale."""
    return verdict.outcome in ("failed", "warned", "xfailed") and verdict.follows is None and verdict.finding is not None


def _judged(verdicts: Iterable[Verdict]) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for verdict in verdicts:
        if verdict.outcome in ("passed", "failed", "warned", "xfailed"):
            found.setdefault(verdict.check[3:4], set()).add(verdict.check)
    return {family: " ".join(sorted(ids)) for family, ids in sorted(found.items())}


def _events(iterations: Iterable[Iterable[str]]) -> list[str]:
    """The iterations, less the `zero_grad` at either end: where one ends is a matter of how the loop is cut."""
    found: list[str] = []
    for iteration in iterations:
        names = list(iteration)
        while names and names[0].startswith("zero_grad"):
            names.pop(0)
        while names and names[-1].startswith("zero_grad"):
            names.pop()
        if names and ", ".join(names) not in found:
            found.append(", ".join(names))
    return found


def _dtype(op: Mapping[str, Any]) -> str:
    """The dtype that an op counts as: 16 bits where any of its tensors has them."""
    dtypes = [str(d) for d in op.get("dtypes", ())]
    return next((d for d in dtypes if d in LOW), dtypes[0] if dtypes else "")


def _modules(profile: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The modules that hold parameters or compute something, and what runs outside of them all."""
    found: dict[str, dict[str, str]] = {}
    for row in profile.get("modules", ()):
        returned = "+".join(sorted(row.get("forward", ())))
        own = {"kind": row["kind"], "parameters": row["parameters"] or "", "returns": returned}
        found[row["module"] or row["kind"]] = {k: v for k, v in own.items() if v}
    families: dict[tuple[str, str], set[str]] = {}
    for op in profile.get("ops", ()):
        if op["phase"] == "forward" and op["family"] in _FAMILIES and (dtype := _dtype(op)):
            shown = f"{dtype} island" if op.get("island") and dtype not in LOW else dtype
            families.setdefault((op["module"] or OUTSIDE, op["family"]), set()).add(shown)
    for (module, family), dtypes in families.items():
        found.setdefault(module, {})[family] = "+".join(sorted(dtypes))
    return {name: row for name, row in sorted(found.items()) if set(row) - {"kind", "returns"}}


def _ops(ops: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    places: dict[str, int] = {}
    flops: dict[str, list[float]] = {}
    for op in ops:
        dtype = _dtype(op)
        if not dtype or op["family"] not in _FAMILIES:
            continue
        name = f"{op['family']} {op['phase']}"
        places[f"{name} {dtype}"] = places.get(f"{name} {dtype}", 0) + 1
        if op["family"] == "matmul":
            low, every = flops.setdefault(f"{name} 16-bit share", [0.0, 0.0])
            flops[f"{name} 16-bit share"] = [low + op["flops"] * (dtype in LOW), every + op["flops"]]
    shares = {name: round(low / every, 2) for name, (low, every) in flops.items() if every > 0.0}
    return dict(sorted({**places, **shares}.items()))


def _state(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found[f"{row['optimizer']}"] = {"bytes": row["bytes per parameter"], "dtype": "+".join(row["dtypes"])}
        for slot, held in row["slots"].items():
            counter = held["elements"] == held["tensors"]  # its share of a parameter depends on the model's size alone
            share = 0.0 if counter or not row["elements"] else round(held["bytes"] / row["elements"], 4)
            found[f"{row['optimizer']} {slot}"] = {"bytes": share, "dtype": held["dtype"]}
    return dict(sorted(found.items()))
