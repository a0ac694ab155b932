"""A pytest plugin that stands in for the runner: four checks, and verdicts that the contract itself dictates.

A contract returns a dict: `{"AMP102": "failed"}` gives that outcome, everything else passes; `"AMP502 float16"` is for one
dtype, `entered` says which ones the step enters by itself, `profile` and `headroom` are those facts. Each judgement appends a
line to `judged.txt`.
"""

import os
import sys
import types
from pathlib import Path

import pytest

import ampcheck
from ampcheck import registry
from ampcheck.config import merge, plain
from ampcheck.findings import ContractReport, Cost, Finding, Location, Verdict
from ampcheck.registry import Check, matches

CATALOGUE = {
    id: Check(id, slug, level, f"what {id} expects", f"how to mend {id}", (), lambda evidence: iter(()), per_dtype)
    for id, slug, level, per_dtype in [
        ("AMP101", "scale-invariance", "error", False),
        ("AMP102", "clip-scaled-gradients", "error", False),
        ("AMP108", "backward-in-autocast", "warning", False),
        ("AMP502", "gradient-parity", "error", True),
    ]
}


def judge(make_step, *, contract, device, options, settings, progress=None):
    with Path("judged.txt").open("a") as log:
        log.write(f"{contract} {device} {os.getpid()}\n")
    options = merge(options, settings)
    if progress:
        progress("natural")
        progress("scaled")
    try:
        wishes = make_step()
    except Exception as error:
        wishes = {"AMP102": "failed", "seen": str(error)}
    report = ContractReport(contract, device, costs=[Cost("natural", 1, 6, 0.25), Cost("scaled", 2, 4, 0.5)])
    for check in CATALOGUE.values():
        for policy in (options.dtypes or wishes.get("entered", ["float16"])) if check.per_dtype else ["as-written"]:
            if matches(check.id, options.ignore):
                continue
            outcome = wishes.get(f"{check.id} {policy}", wishes.get(check.id, "passed"))
            follows = wishes.get("follows", {}).get(check.id)
            finding = None
            if outcome in ("failed", "warned") and not follows:
                finding = Finding(
                    check.id, check.slug, "error" if outcome == "failed" else "warning", contract, check.expected,
                    wishes.get("seen", f"what {check.id} saw"), check.fix, policy,
                    wishes.get("location", Location(make_step.__globals__.get("__file__", __file__), 12, "train_one_step")),
                    wishes.get("evidence", {}),
                )  # fmt: skip
                report.findings.append(finding)
                if check.id in options.xfail:
                    outcome = "xfailed"
            reason = wishes.get("reason", "") if outcome in ("inconclusive", "not-run") else ""
            if outcome == "passed" and check.id in options.xfail:
                outcome, reason = "failed", "XPASS(strict)"
            report.verdicts.append(Verdict(contract, check.id, check.slug, outcome, policy, reason, 0.125, follows, finding))
    report.facts = {"settings": plain(options), "profile": wishes.get("profile", {}), "headroom": wishes.get("headroom", {})}
    report.findings.sort(key=lambda f: (f.id not in wishes.get("primary", ()), f.id))
    return report


def environment(device):
    return {"torch": "0.0", "device": device}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    runner = types.ModuleType("ampcheck.runner")
    runner.judge, runner.environment = judge, environment
    patch = pytest.MonkeyPatch()
    patch.setitem(sys.modules, "ampcheck.runner", runner)
    patch.setattr(ampcheck, "runner", runner, raising=False)  # the real one may have been imported in this process
    patch.setattr(registry, "load_checks", lambda: CATALOGUE)
    config.add_cleanup(patch.undo)
