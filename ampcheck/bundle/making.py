"""Decides whether a contract leaves a bundle, and puts it together."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ampcheck
from ampcheck.bundle import file
from ampcheck.bundle.keeper import Keeper
from ampcheck.errors import UsageError
from ampcheck.evidence import Evidence
from ampcheck.findings import ContractReport

__all__ = ["keep", "path_of"]

#: Checks whose failure is about numbers: each is worth a bundle even where the natural run stayed finite.
_NUMBERS = ("AMP201", "AMP202", "AMP203", "AMP204", "AMP205", "AMP310", "AMP501", "AMP502", "AMP503", "AMP504", "AMP505")


def path_of(directory: Path, contract: str, device: str) -> Path:
    """Where the bundle of a contract goes: a name that every file system takes, and no two contracts share."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{contract}-{device}").strip("-.")[:80]
    digest = hashlib.sha256(f"{contract}\0{device}".encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return directory / f"{slug}-{digest}{file.SUFFIX}"


def keep(keeper: Keeper, evidence: Evidence, report: ContractReport, directory: Path) -> str | None:
    """Write the bundle of a contract in which something went wrong; an old one of the same contract is removed in any case.

    Args:
        keeper: watched its natural run.
        evidence, report: what was recorded of it, and concluded.
        directory: where bundles go.

    Returns:
        The path; `None` where nothing went wrong, or where it could not be written, which is noted in the report's facts.
    """
    path = path_of(directory, report.contract, report.device)
    try:
        path.unlink(missing_ok=True)
        reasons = _why(keeper, report)
        if not reasons:
            return None
        if keeper.judged is None:
            raise UsageError(keeper.failed or "the step was never called")
        file.write(_data(keeper, evidence, report, reasons), path)
    except Exception as error:  # a full disk, or a fault of ours: the verdicts stand without it
        report.facts.setdefault("notes", []).append(f"no evidence bundle: {type(error).__name__}: {error}")
        return None
    return str(path)


def _why(keeper: Keeper, report: ContractReport) -> list[str]:
    failed = [v.check for v in report.verdicts if v.outcome == "failed" and v.check in _NUMBERS]
    seen = [what for call in sorted(keeper.not_finite) for what in keeper.not_finite[call]]
    return [*dict.fromkeys(seen), *dict.fromkeys(failed)]


def _data(keeper: Keeper, evidence: Evidence, report: ContractReport, reasons: list[str]) -> dict[str, Any]:
    call = keeper.judged
    assert call is not None
    trace, profile = evidence.trace, report.facts.get("profile") or {}
    raised = trace.raised if trace.raised is not None and trace.raised.call == call else None
    return {
        "ampcheck": ampcheck.__version__,
        "contract": report.contract,
        "device": report.device,
        "environment": _plain(evidence.environment),
        "why": reasons,
        "call": call,
        "calls": trace.calls,
        "scale": _plain(profile.get("scale", [])),
        "steps": _plain(keeper.steps),
        "judged": {
            "returned": _plain(trace.returned[call]) if call < len(trace.returned) else {},
            "raised": None if raised is None else str(raised),
            "not finite": list(keeper.not_finite.get(call, ())),
            "unwatched": keeper.failed,
        },
        "first_nonfinite": _plain(profile.get("first_nonfinite")),
        "first_module": _plain(keeper.modules.get(call)),
        "findings": _plain([finding.to_json() for finding in report.findings]),
        **keeper.snapshots[call],
    }


def _plain(value: Any) -> Any:
    """Plain data, without paths of this machine: files are named from the current directory."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _file(inner) if key in ("file", "line") else _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (bool, int, float)):
        return float(value)
    return str(value)


def _file(value: Any) -> Any:
    if not isinstance(value, str) or not Path(value).is_absolute():
        return _plain(value)
    try:
        return Path(os.path.relpath(value)).as_posix()
    except ValueError:  # another drive
        return Path(value).name
