"""Family 4: what the optimizer keeps: dtypes and bytes of its state, master weights, averages, step counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ampcheck.checks._precision import low_norms
from ampcheck.checks._state import LOW, listed, lost_share, unkept, without
from ampcheck.evidence import Evidence
from ampcheck.findings import Level, Location
from ampcheck.registry import Fault, Inconclusive, NotRun, Result, check

if TYPE_CHECKING:
    from ampcheck.scenarios.precision import Precision
    from ampcheck.scenarios.state import Held, OptimizerState

#: A declared size is met within this share: 8-bit states carry scales for their blocks and leave small tensors in FP32.
_DECLARED = 0.05


@check(
    "AMP401", "state-dtype",
    expected="optimizer state has the dtypes of the FP32 run",
    fix="make the state in float32, whatever the dtype of the parameter, or declare it: Training(state_bytes_per_param=...)",
    follows=("AMP111", "AMP307", "AMP403", "AMP404"),
)  # fmt: skip
def state_dtype(evidence: Evidence) -> Iterator[Result]:
    """No slot of the optimizer's state has fewer bits than in the FP32 run.

    A second moment in bfloat16 with a decay of 0.999 cannot follow its target, since each step changes it by less than half
    a unit in the last place. The reference is the same contract with every request for a 16-bit dtype answered with
    float32. State that has 16 bits there too, and state of a declared size, is as it is meant to be. Where the optimizer
    compensates for 16-bit weights (stochastic rounding, a compensation buffer) this is a warning.

    Source: the state that torch.optim's classes make for float32 parameters.
    """
    found, skipped = evidence.precision, list(without(evidence))
    yield from skipped
    declared = evidence.declared.get("state_bytes_per_param")
    if skipped or found is None or (declared is not None and _measured(found) >= (1 - _DECLARED) * declared):
        return
    narrow: dict[tuple[int, str, str], list[str]] = {}
    sites: dict[tuple[int, str, str], Location | None] = {}
    for index, j, slot in found.natural.low_slots():
        optimizer = found.natural.optimizers[index]
        held, wide = optimizer.parameters[j], _wide_dtype(found, index, j, slot)
        if wide is None:
            dtype = held.slots[slot].dtype
            yield Inconclusive(f"{slot} of {optimizer.kind} is {dtype}; there is nothing to compare it with: {found.reason}")
        elif wide not in LOW and not _leftovers(found, index, slot):
            key = (index, slot, held.slots[slot].dtype)
            narrow.setdefault(key, []).append(held.name)
            sites.setdefault(key, found.made.get((index, j, slot)) or (held.site if held.low else None) or optimizer.site)
    for index, optimizer in found.natural.optimizers.items():
        wider = found.widened.optimizers[index].extra if found.widened is not None and index in found.widened.optimizers else {}
        for path, slot_ in optimizer.extra.items():
            if slot_.dtype in LOW and path in wider and wider[path].dtype not in LOW:
                narrow.setdefault((index, "an attribute", slot_.dtype), []).append(path)
                sites.setdefault((index, "an attribute", slot_.dtype), optimizer.site)
    if narrow:
        index = next(iter(narrow))[0]
        optimizer = found.natural.optimizers[index]
        slots = [f"{slot} ({dtype})" for i, slot, dtype in narrow if i == index]
        names = next(iter(narrow.values()))
        yield Fault(
            f"{optimizer.kind} keeps {', '.join(slots)} of {len(names)} parameters ({listed(names)}); in the FP32 run these "
            "are float32",
            next(iter(sites.values())),
            level=_level(found, index),
            evidence={"slots": {slot: dtype for i, slot, dtype in narrow if i == index}},
        )


@check(
    "AMP402", "state-bytes",
    expected="the bytes of the optimizer's state are those of the FP32 run, of the formula of its class, or those declared",
    fix="make the state as the optimizer's class does in float32, or declare its size: Training(state_bytes_per_param=...)",
    follows=("AMP111", "AMP307", "AMP403", "AMP404", "AMP401"),
)  # fmt: skip
def state_bytes(evidence: Evidence) -> Iterator[Result]:
    """The state takes the memory that it should, slot by slot.

    torch's own optimizers are held to the formula of their class (AdamW: 8 bytes for each element of a trained parameter,
    and 4 for each step counter), others to the FP32 run. With `Training(state_bytes_per_param=)` the sum over all
    optimizers, step counters aside, is held to that number of bytes for each element of a trained parameter, within 5 %
    (block scales, small tensors left in FP32).

    Source: `torch/optim/*.py`, the state that each class makes.
    """
    found, skipped = evidence.precision, list(without(evidence))
    yield from skipped
    if skipped or found is None:
        return
    declared = _declared(evidence, found)
    if declared is not None:
        if declared is False:
            first = next(o for o in found.natural.optimizers.values() if o.steps)
            yield Fault(
                f"the state takes {_measured(found):.4g} bytes for each element of a trained parameter; "
                f"{evidence.declared['state_bytes_per_param']:g} are declared",
                first.site,
            )
        return
    for index, optimizer in found.natural.optimizers.items():
        for j, held in enumerate(optimizer.parameters):
            for slot, expected, source in _expected_bytes(found, index, j):
                seen = held.slots[slot].nbytes if slot in held.slots else 0
                if seen != expected and not _leftovers(found, index, slot):
                    yield Fault(
                        f"{slot} of {held.name} takes {seen} bytes in {optimizer.kind}; {source} {expected}",
                        found.made.get((index, j, slot)) or (held.site if held.low else None) or optimizer.site,
                        level=_level(found, index),
                        evidence={"slot": slot, "bytes": seen, "expected bytes": expected},
                    )
                    return


@check(
    "AMP403", "master-weights",
    expected="16-bit trainable parameters have FP32 master copies, in step with them, or another way to keep small updates",
    fix="keep FP32 parameters (or FP32 masters that the optimizer steps, copied into the 16-bit model after each step)",
    follows=("AMP307",),
)  # fmt: skip
def master_weights(evidence: Evidence) -> Iterator[Result]:
    """Small updates of 16-bit weights are not lost.

    An update of less than half a unit in the last place leaves a 16-bit weight as it was: in bfloat16, anything below 0.2
    to 0.4 % of the weight. So trained 16-bit parameters need an FP32 master copy: any reachable tensor that rounds to the
    parameter, to the bit, after steps too. Instead of it the optimizer may round stochastically or keep what rounding left
    over in a buffer; both are recognised by what they do to the first update, against that of the FP32 run. A master that
    is trained while the model does not follow it is a fault too, and so is one that is made anew from the model for each step.

    Source: Micikevicius et al., "Mixed Precision Training" (2018), section 3.1.
    """
    found = evidence.precision
    if found is None:
        yield NotRun("the natural run left no state")
        return
    for entry in unkept(found):
        if isinstance(entry, Inconclusive):
            yield entry
            continue
        index, optimizer, low = entry
        dtypes = "/".join(sorted({p.dtype for p in low}))
        yield Fault(
            f"{optimizer.kind} steps {len(low)} parameters in {dtypes} ({listed(p.name for p in low)}), and nothing keeps "
            f"what rounding takes from them{lost_share(found, index)}",
            next((p.site for p in low if p.site is not None), None) or optimizer.site,
            evidence={} if index not in found.lost else {"share of updates lost": found.lost[index].share},
            follows=low_norms(evidence),
        )
        return
    for name, master, site in found.natural.stale:
        first = next((o for o in found.natural.optimizers.values() if o.steps), None)
        yield Fault(
            f"{master} is an FP32 copy of the 16-bit parameter {name} and is trained, and {name} does not follow it",
            site or (first.site if first is not None else None),
            fix="copy the masters into the model after each step, p.copy_(master)",
        )
        return
    for name, master, site in found.natural.remade:
        yield Fault(
            f"{master}, the FP32 master of {name}, is made anew from the 16-bit parameter between two steps: what rounding takes "
            "from it is lost each time",
            site,
            fix="make the masters once, and from then on copy from them into the model only",
        )
        return


@check(
    "AMP404", "epsilon",
    expected="the optimizer's eps is not zero in the dtype that it is used in",
    fix="keep the second moment and the denominator in float32, or use an eps that is representable (1e-4 in float16)",
    follows=("AMP111", "AMP307", "AMP403"),
)  # fmt: skip
def epsilon(evidence: Evidence) -> Iterator[Result]:
    """The eps keeps the denominator of an adaptive optimizer from being zero, so it must not be zero itself.

    The smallest positive float16 is 6e-8: the usual eps of 1e-8 is zero there. What counts is the dtype of the tensor that
    it is added to, as the optimizer's ops are seen to run; state in 16 bits whose denominator is formed in FP32 passes.

    Source: IEEE 754 binary16; the defaults of torch.optim.
    """
    found, skipped = evidence.precision, list(without(evidence))
    yield from skipped
    if skipped or found is None:
        return
    for used in found.epsilons:
        optimizer = found.natural.optimizers[used.optimizer]
        yield Fault(
            f"eps={used.value:g} of {optimizer.kind} is zero in {used.dtype}, in which the denominator is formed ({used.op})",
            optimizer.site if optimizer.known else used.site or optimizer.site,
            evidence={"eps": used.value, "dtype": used.dtype},
        )
        return


@check(
    "AMP405", "averaged-weights", level="warning",
    expected="averaged copies of the weights are FP32 and cover every parameter",
    fix="keep the averages in float32, whatever the model runs in, and average every parameter of the model",
)  # fmt: skip
def averaged_weights(evidence: Evidence) -> Iterator[Result]:
    """Averages of the weights (EMA, SWA) can take small steps, and none is left out.

    With a decay of 0.999 a 16-bit average does not move at all: the increments are below half a unit in the last place. A
    copy counts as an average where, in a run without 16-bit rounding, it moves towards its parameter by one and the same
    share for all elements. Parameters are missed where most of a module is averaged and the rest is not.

    Source: the arithmetic of a running mean; PyTorch docs, `torch.optim.swa_utils`.
    """
    found, skipped = evidence.precision, list(without(evidence))
    yield from skipped
    if skipped or found is None:
        return
    averages = found.averages
    low = [
        path
        for path in averages.near
        if path in averages.followed and averages.near[path][1] in LOW and not averages.kept_wide(path)
    ]
    last = next((e.site for e in reversed(evidence.trace.events) if e.kind == "optimizer_step"), None)
    if low:
        dtypes = "/".join(sorted({averages.near[path][1] for path in low}))
        site = next((s for s in map(averages.sites.get, low) if s is not None), last)
        yield Fault(f"{len(low)} averaged copies are {dtypes} ({listed(low)})", site)
        return
    missed = _missed(averages.uncovered, averages.parameters, {path: averages.near[path][0] for path in averages.followed})
    if missed:
        yield Fault(f"the averaged copies leave out {listed(missed)}", last)


@check(
    "AMP406", "step-counter",
    expected="the optimizer's step counters advance by one for each step taken",
    fix="count steps once for each call of step(), in a Python number or float32 tensor",
    follows=("AMP111", "AMP103", "AMP401"),
)  # fmt: skip
def step_counter(evidence: Evidence) -> Iterator[Result]:
    """Step counters count steps: bias correction depends on them.

    Read for each parameter with a gradient before and after each step that was taken, and in the groups. A counter that
    moves by more than one, or not at all although the parameter was written, is a fault; so is one in 16 bits, which stops
    at 256 (bfloat16) or 2048 (float16).

    Source: Kingma & Ba, "Adam" (2015), algorithm 1; torch.optim's `step` state.
    """
    found, skipped = evidence.precision, list(without(evidence))
    yield from skipped
    if skipped or found is None:
        return
    for index, optimizer in found.natural.optimizers.items():
        for counter in optimizer.counters:
            yield Fault(
                f"in call {counter.call + 1} one step of {optimizer.kind} moved {counter.slot!r} by {counter.advanced:g} "
                f"for {counter.parameters} parameters",
                counter.site,
            )
            return
        for j, held in enumerate(optimizer.parameters):
            dtype = held.slots["step"].dtype if "step" in held.slots else ""
            if dtype in ("float16", "bfloat16"):
                limit = 2048 if dtype == "float16" else 256
                yield Fault(
                    f"{optimizer.kind} counts the steps of {held.name} in {dtype}, which cannot count beyond {limit}",
                    found.made.get((index, j, "step")) or optimizer.site,
                )
                return


def _leftovers(found: Precision, index: int, slot: str) -> bool:
    """Whether a slot is the buffer of what rounding leaves over, which has the dtype of the weights by nature."""
    return index in found.lost and found.lost[index].compensated == slot


# -- reading the evidence -------------------------------------------------------------------------------------------


def _level(found: Precision, index: int) -> Level | None:
    """State of an optimizer that compensates for 16-bit weights is 16-bit by design: a warning."""
    return "warning" if index in found.lost and found.lost[index].compensated else None


def _widened(found: Precision, index: int, j: int) -> Held | None:
    optimizers = found.widened.optimizers if found.widened is not None else {}
    parameters = optimizers[index].parameters if index in optimizers else []
    return parameters[j] if j < len(parameters) else None


def _wide_dtype(found: Precision, index: int, j: int, slot: str) -> str | None:
    """The dtype that a slot should have: that of the FP32 run, else that of the formula; `None` if neither is known."""
    held = _widened(found, index, j)
    if held is not None and slot in held.slots:
        return held.slots[slot].dtype
    expected = found.natural.optimizers[index].parameters[j].expected
    return expected[slot].dtype if expected is not None and slot in expected else None


def _expected_bytes(found: Precision, index: int, j: int) -> Iterator[tuple[str, int, str]]:
    """`(slot, bytes, where they are from)` of one parameter."""
    held = found.natural.optimizers[index].parameters[j]
    if not held.slots:
        return  # none is kept, or it is thrown away after each step
    if held.expected is not None:
        for slot, expected in held.expected.items():
            if not expected.at_most:
                yield slot, expected.nbytes, "the formula of its class gives"
        return
    wide = _widened(found, index, j)
    if wide is not None:
        for slot, wider in wide.slots.items():
            yield slot, wider.nbytes, "in the FP32 run it takes"


def _measured(found: Precision) -> float:
    """Bytes of state for each element of a trained parameter, counters aside."""
    optimizers: list[OptimizerState] = [o for o in found.natural.optimizers.values() if o.steps]
    numel = sum(p.numel for o in optimizers for p in o.trained)
    slots = [slot for o in optimizers for p in o.parameters for slot in p.slots.values() if slot.numel > 1 or p.numel == 1]
    return sum(slot.nbytes for slot in [*slots, *(s for o in optimizers for s in o.extra.values())]) / max(numel, 1)


def _declared(evidence: Evidence, found: Precision) -> bool | None:
    """Whether the state has the declared size; `None` where none is declared."""
    wanted = evidence.declared.get("state_bytes_per_param")
    return None if wanted is None else abs(_measured(found) - float(wanted)) <= _DECLARED * max(float(wanted), 1.0)


def _missed(uncovered: list[str], parameters: list[str], covered: dict[str, str]) -> list[str]:
    """Parameters that are not averaged although most of a module is that has averages: `covered` is path of one -> parameter.

    What the names of both end with is the place in the module, and what is before it in the parameter's is the module. Where they
    end differently, the smallest module around the averaged parameters is it.
    """
    modules, loose = set(), []
    for path, name in covered.items():
        places, parts = path.split("."), name.split(".")
        while places and parts and places[-1] == parts[-1]:
            places, parts = places[:-1], parts[:-1]
        if len(parts) < len(name.split(".")):
            modules.add("".join(f"{part}." for part in parts))
        else:
            loose.append(parts[:-1])
    if loose:
        shared = 0
        while all(len(p) > shared and p[shared] == loose[0][shared] for p in loose):
            shared += 1
        modules.add("".join(f"{part}." for part in loose[0][:shared]))
    missed = set()
    for module in modules:
        inside = [name for name in parameters if name.startswith(module)]
        without_one = [name for name in inside if name in uncovered and name not in covered.values()]
        if 2 * len(without_one) <= len(inside):
            missed.update(without_one)
    return [name for name in parameters if name in missed]
