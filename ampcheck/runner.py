"""Plans the runs of one contract, lets the checks judge what they left, and builds the report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

from ampcheck import config
from ampcheck.checks._state import table
from ampcheck.contract import Options, Training
from ampcheck.errors import ContractError, ScenarioTimeout, UsageError, ours
from ampcheck.evidence import Evidence
from ampcheck.findings import ContractReport, Location, Report
from ampcheck.profile import profile
from ampcheck.trace.deviations import headroom
from ampcheck.trace.events import Trace
from ampcheck.verdicts import decide, narrow

__all__ = ["check", "environment", "judge"]


def check(make_step: Callable[[], object], *, device: str | None = None, name: str | None = None, **options: Any) -> Report:
    """Judge a training step without pytest.

    Args:
        make_step: builds the step afresh: a function, or a contract, that returns a step or a `Training`; it takes no argument, or
            the device type as `amp_device` or `device`.
        device: device type the step runs on; CUDA where there is one, else the CPU.
        name: for messages; the function's name otherwise.
        **options: as for `ampcheck.contract`: `select=`, `ignore=`, `xfail=`, `strict=`, `timeout=`.

    Returns:
        A `Report`; `report.ok` is False if an error-level rule is broken.

    Raises:
        UsageError: for an option that names no check, or a function that needs more than a device type.
    """
    from ampcheck.contract import Contract, bound, contract

    declared = make_step if isinstance(make_step, Contract) else contract(**options)(make_step)
    where = device or default_device()
    report = judge(
        bound(declared.function, where),
        contract=name or declared.name,
        device=where,
        options=declared.options,
        settings=config.Settings(),
    )
    narrow(report, config.merge(declared.options, config.Settings()).select)
    return Report(environment(where), [report])


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def environment(device: str = "cpu") -> dict[str, Any]:
    """Versions, hardware and the flags that numbers depend on."""
    import torch

    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
        "device": device,
    }
    if device == "cuda" and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "card": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory": properties.total_memory,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "bfloat16": torch.cuda.is_bf16_supported(),
        }
    return found


def judge(
    make_step: Callable[[], object],
    *,
    contract: str,
    device: str,
    options: Options,
    settings: config.Settings,
    progress: Callable[[str], None] | None = None,
) -> ContractReport:
    """Run everything for one contract on one device, and judge it whole.

    Args:
        make_step: builds the contract's step.
        contract: its node id, for findings.
        device: device type.
        options, settings: of the contract and of the session.
        progress: told the name of each scenario as it begins.

    Returns:
        One verdict for each check (and dtype), the findings behind them, and what it cost. Faults of the contract never raise.
    """
    from ampcheck.scenarios.spec import Spec

    merged = config.merge(options, settings)
    timeout = options.timeout if options.timeout is not None else settings.timeout
    keeper = _keeper(settings)
    spec = Spec(make_step, contract, device, timeout, progress, () if keeper is None else (keeper,))
    report = ContractReport(contract, device)
    with _threads():
        evidence = _gather(spec, settings.budget, merged.dtypes)
    evidence.environment = environment(device)
    report.costs = list(spec.costs.values())
    report.facts = {"scale": _scale_history(evidence.trace), "notes": sorted(set(evidence.not_run.values()))}
    if evidence.natural.notes.get("patience"):
        report.facts["notes"].append(evidence.natural.notes["patience"])
    if evidence.precision is not None:
        report.facts["optimizer state"] = table(evidence.precision)
    report.facts["headroom"] = {policy: headroom(one) for policy, one in evidence.parity.items()}
    report.facts["settings"] = config.plain(merged)
    report.facts["profile"] = _profile(report, evidence)
    decide(report, evidence, merged)
    if keeper is not None and settings.evidence is not None:
        from ampcheck.bundle.making import keep

        report.facts["evidence"] = keep(keeper, evidence, report, settings.evidence)
    return report


# -- running --------------------------------------------------------------------------------------------------------


def _threads() -> Any:
    """Small steps with several threads on a busy machine take a hundred times longer: leave half of the processors alone."""
    import contextlib

    import torch

    @contextlib.contextmanager
    def limited() -> Iterator[None]:
        before = torch.get_num_threads()
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        torch.set_num_threads(max(1, min(before, cpus // (2 * workers))))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return limited()


def _gather(spec: Any, budget: float | None, dtypes: tuple[str, ...] | None = None) -> Evidence:
    """Run the scenarios, the cheapest families first; what one of them cannot do does not keep the others from running."""
    from ampcheck.scenarios.drive import Run
    from ampcheck.trace.events import Raised

    began = time.perf_counter()
    empty = Evidence(spec.name, spec.device, Run(Trace()))
    try:
        from ampcheck.scenarios.natural import natural

        declared: dict[str, Any] = {}
        spec.make_step = _declaring(spec.make_step, spec.name, declared)
        evidence = Evidence(spec.name, spec.device, natural(spec), declared=declared)
        evidence.precision = evidence.natural.notes.pop("precision", None)
        evidence.facts = _table(spec.device)
    except (ContractError, ScenarioTimeout) as error:
        empty.natural.trace.raised = Raised(-1, type(error).__name__, str(error), _site_of(spec.make_step))
        return empty
    trace = evidence.trace
    if trace.raised is not None and trace.raised.call < 0:
        return evidence
    for name, scenario in _plan(spec, evidence, dtypes):
        if budget is not None and time.perf_counter() - began > budget:
            evidence.not_run[name] = f"budget of {budget:g} s"
            continue
        try:
            scenario()
        except ScenarioTimeout as error:
            evidence.not_run[name] = f"timeout: {error}"
        except ContractError as error:
            if "shares state" in str(error):
                evidence.trace.raised = Raised(-1, "ContractError", str(error), _site_of(spec.make_step))
                return evidence
            evidence.not_run[name] = str(error)
        except Exception as error:
            # a bug of ours must not block a merge: the other scenarios go on, and the reason stands in the report
            evidence.not_run[name] = ours(error)
    return evidence


def _plan(spec: Any, evidence: Evidence, dtypes: tuple[str, ...] | None) -> Iterator[tuple[str, Callable[[], None]]]:
    from ampcheck.scenarios.comparable import scaled_only
    from ampcheck.scenarios.exact import exactness, own_scale
    from ampcheck.scenarios.gain import gain
    from ampcheck.scenarios.natural import needed_calls, recovery
    from ampcheck.scenarios.origin import calls_in_doubt, overflow_origin
    from ampcheck.scenarios.overflow import overflow
    from ampcheck.scenarios.parity import parity
    from ampcheck.scenarios.precision import precision
    from ampcheck.scenarios.resume import resume
    from ampcheck.scenarios.scaler import scaler_discrepancies

    trace = evidence.trace
    steps = [e for e in trace.of("scaler_step") if e.get("enabled") and e.get("grads")]
    drivers = {e.optimizer: e.scaler for e in steps if e.optimizer is not None and e.scaler is not None}
    # one that is only unscaled by the scaler and stepped by hand has to notice an overflow as well
    by_hand = {e.optimizer for e in trace.steps} - drivers.keys()
    for e in trace.of("unscale"):
        if e.optimizer is not None and e.optimizer in by_hand and e.scaler is not None and e.get("enabled"):
            drivers[e.optimizer] = e.scaler
    loose = {i: s for i, s in scaled_only(trace).items() if i not in drivers}
    usable = trace.calls if trace.raised is None else trace.raised.call
    doubt = calls_in_doubt(evidence.natural)

    def run_origin() -> None:
        evidence.origin = overflow_origin(spec, evidence.natural, doubt)

    if doubt:
        yield "origin", run_origin
    state = evidence.precision
    if state is not None and state.suspicious():
        yield "precision", lambda: precision(spec, state, max(usable, 1))
    if usable < 1:
        for name in ("exact", "overflow", "resume", "scaler", "parity"):
            evidence.not_run[name] = "the step raises in its first call"
        if drivers:  # even so its own scaler can be tried
            evidence.not_run.pop("scaler")
            yield "scaler", lambda: scaler_discrepancies(spec, evidence)
        return

    def run_gain() -> None:
        evidence.gain = gain(spec, usable)

    def run_exact() -> None:
        calls = min(needed_calls(evidence.natural), usable)
        evidence.exact = exactness(spec, calls, evidence.scaler_in_use(), own_scale(evidence.natural))

    def run_overflow() -> None:
        windows = sum(1 for e in trace.of("update") if e.get("new_scale") is None) or len(list(trace.of("scaler_step")))
        evidence.overflow = overflow(spec, drivers, windows, loose)

    def run_resume() -> None:
        evidence.resume = resume(spec)

    def run_recovery() -> None:
        evidence.recovery = recovery(spec, 40)

    yield "exact", run_exact
    if drivers or loose:
        yield "overflow", run_overflow
    if drivers:
        yield "scaler", lambda: scaler_discrepancies(spec, evidence)
    if evidence.declared.get("state_dict_site") is not None or evidence.declared.get("resumable"):
        if evidence.natural.notes.get("limit", 0) > 2:
            yield "resume", run_resume
        else:
            evidence.not_run["resume"] = "the step may be called fewer than three times after one build"
    if drivers and trace.raised is None and not any(e.get("took") for e in trace.of("scaler_step", "optimizer_step")):
        yield "recovery", run_recovery
    yield "parity", lambda: parity(spec, evidence, dtypes)
    if spec.device == "cuda" and evidence.census.low_forward and trace.raised is None:
        yield "gain", run_gain


def _table(device: str) -> Any:
    """The autocast table of this device and torch; `None` if there is none and none can be measured."""
    from ampcheck import facts

    try:
        return facts.load(device)
    except UsageError:
        return None


def _declaring(make_step: Callable[[], object], name: str, declared: dict[str, Any]) -> Callable[[], object]:
    """Note what the contract's `Training` declares, as it is built."""
    from ampcheck.trace.sources import of_callable

    def build() -> object:
        built = make_step()
        if isinstance(built, Training):
            declared["loss_scale"] = built.loss_scale
            declared["state_bytes_per_param"] = built.state_bytes_per_param
            declared["capabilities"] = dict(built.capabilities)
            declared["resumable"] = built.state_dict is not None
            declared["state_dict_site"] = of_callable(built.state_dict)
            declared["load_state_dict_site"] = of_callable(built.load_state_dict)
        return built

    build.__wrapped__ = make_step  # type: ignore[attr-defined]
    return build


def _keeper(settings: config.Settings) -> Any:
    """What watches the natural run for an evidence bundle, where bundles are asked for."""
    if settings.evidence is None:
        return None
    from ampcheck.bundle.keeper import Keeper

    return Keeper(settings.evidence_batch)


def _profile(report: ContractReport, evidence: Evidence) -> dict[str, Any]:
    try:
        return profile(evidence)
    except Exception as error:  # it is there to be looked at; no verdict waits for it
        report.facts["notes"].append(ours(error))
        return {}


def _site_of(make_step: Any) -> Location | None:
    from ampcheck.trace.sources import of_callable

    return of_callable(make_step)


def _scale_history(trace: Trace) -> list[float]:
    return [e.get("scale") for e in trace.of("scale") if e.get("enabled")]
