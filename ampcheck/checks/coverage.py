"""Family 6: how much of the step really profits from 16 bits: coverage, shapes, casts, time and memory."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.checks._precision import inside, trained, without_census
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, Note, NotRun, Result, check
from ampcheck.trace.ops import OpUse

#: Below this share of the matmul FLOPs in 16 bits most of the work is left out.
ENOUGH = 0.5
#: From this share of the 16-bit matmul FLOPs on, odd sizes matter.
ODD_SHARE = 0.25
#: The multiple that the tensor cores of every generation want in 16-bit products.
MULTIPLE = 8
#: Less than this share of time or memory is no gain.
GAIN = 0.03
#: A step below this many seconds is bound by launching its kernels.
SHORT = 0.010
_CELLS = ("LSTMCell", "GRUCell", "RNNCell")


@check(
    "AMP601", "coverage", level="warning",
    expected="most of the matmul and convolution FLOPs of the training step run in 16 bits",
    fix="bring the modules that are named under autocast, or leave them out on purpose and ignore this",
    follows=("AMP306", "AMP111"),
)  # fmt: skip
def coverage(evidence: Evidence) -> Iterator[Result]:
    """The share of matmul and convolution FLOPs that ran in 16 bits, and what ran in FP32, by module and line.

    A loop without autocast has 0 %. A recurrent cell of torch whose state stays in FP32 under autocast, so that all its
    operands are cast down again at every time step, is named too.

    Source: Micikevicius et al., "Mixed Precision Training", 2018; FLOPs by torch's own formulas (`torch.utils.flop_counter`).
    """
    uses = [*trained(evidence, "matmul"), *(u for u in evidence.census.of("matmul") if u.phase in ("backward", "hook"))]
    total = sum(u.flops for u in uses)
    if not total:
        yield from without_census(evidence)
        yield NotRun("no matmul or convolution takes part in a backward")
        return
    share = sum(u.flops for u in uses if u.low) / total
    leaks = _by_place([u for u in uses if not u.low])
    if share < ENOUGH:
        shown = "; ".join(f"{place.op}{inside(place)} {flops / total:.0%}" for place, flops in leaks[:3])
        yield Fault(
            f"{share:.0%} of the matmul FLOPs run in 16 bits; in {leaks[0][0].inputs[0]}: {shown}", leaks[0][0].site,
            evidence={"share": share, "leaks": {f"{p.op}{inside(p)}, {p.site}": flops / total for p, flops in leaks[:10]}},
        )  # fmt: skip
        return
    for cell in trained(evidence, "matmul"):
        casts = [u for u in evidence.census.of("cast") if u.module == cell.module and u.kind == cell.kind]
        steps = sum(
            u.count
            for u in evidence.census.of("matmul")
            if u.phase == "forward" and (u.module, u.kind) == (cell.module, cell.kind)
        )
        if cell.kind in _CELLS and cell.autocast != "off" and 2 * sum(u.count for u in casts) > steps:
            yield Fault(
                f"{cell.where} keeps its state in float32 under {cell.autocast} autocast on {cell.device}: input and state are "
                "cast down again at every time step, and only its products run in 16 bits",
                cell.site,
                fix="use a sequence module (nn.LSTM, nn.GRU), or write the cell with linear layers",
            )
            return


def _by_place(uses: list[OpUse]) -> list[tuple[OpUse, float]]:
    """Uses of one module and line together, the largest first."""
    found: dict[object, tuple[OpUse, float]] = {}
    for use in sorted(uses, key=lambda u: u.phase != "forward"):
        key = (use.module, use.kind, use.site)
        first, flops = found.get(key, (use, 0.0))
        found[key] = (first, flops + use.flops)
    return sorted(found.values(), key=lambda entry: -entry[1])


@check(
    "AMP602", "tensor-core-shape", level="warning",
    expected="the layer sizes of 16-bit products are multiples of 8",
    fix="round layer sizes, vocabulary and channels up to a multiple of 8 (64 is better), and pad",
)  # fmt: skip
def tensor_core_shape(evidence: Evidence) -> Iterator[Result]:
    """Sizes of weights that miss the multiple tensor cores want.

    Judged by share: a warning if a quarter of the 16-bit FLOPs is in linear layers and convolutions one of whose sizes is
    odd in this sense. The batch may be anything.

    Source: NVIDIA, "Deep Learning Performance Guide": multiples of 8 for 16-bit operands.
    """
    low = [u for u in trained(evidence, "matmul") if u.low]
    total, odd = sum(u.flops for u in low), sum(u.odd_flops for u in low)
    if not total:
        yield from without_census(evidence)
        yield NotRun("no 16-bit matmul or convolution takes part in a backward")
    elif odd >= ODD_SHARE * total:
        worst = max(low, key=lambda u: u.odd_flops)
        sizes = " x ".join(str(d) for d in worst.dims[1:])
        yield Fault(
            f"{odd / total:.0%} of the 16-bit matmul FLOPs have a layer size that is no multiple of {MULTIPLE}: "
            f"{worst.op}{inside(worst)} is {sizes}",
            worst.site,
            evidence={"share": odd / total, "layers": {f"{u.op}{inside(u)}": list(u.dims) for u in low if u.odd_flops}},
        )


@check(
    "AMP603",
    "measured-gain",
    level="warning",
    expected="on a GPU a step in 16 bits takes less time, or less memory, than the same step in float32",
    fix="look at AMP601, AMP602 and AMP604 first; a small batch is bound by launches, which 16 bits do not make fewer",
    follows=("AMP306", "AMP601", "AMP111"),
)
def measured_gain(evidence: Evidence) -> Iterator[Result]:
    """Time and peak memory of a call, as written against float32, medians of a few calls on this GPU.

    A warning if it gains neither. The measurement itself is in the item's reason. It runs with deterministic algorithms and
    without TF32, and a step that takes less than 10 ms in FP32 says nothing about the training it stands for.

    Source: measured on the spot.
    """
    if evidence.device != "cuda":
        yield NotRun("time and memory are measured on a GPU")
        return
    found = evidence.gain
    if found is None:
        yield NotRun(evidence.not_run.get("gain", "nothing ran under autocast that could be measured"))
        return
    time, memory = found.seconds / found.fp32_seconds, found.bytes / found.fp32_bytes
    figures = (
        f"{1e3 * found.seconds:.1f} ms against {1e3 * found.fp32_seconds:.1f} ms, {found.bytes / 2**20:.0f} MiB against "
        f"{found.fp32_bytes / 2**20:.0f} MiB in FP32 (medians of {found.calls} calls)"
    )
    if found.fp32_seconds < SHORT:
        yield Note(f"{figures}: too short a step to judge by")
    elif time > 1 - GAIN and memory > 1 - GAIN:
        first = next(iter(trained(evidence, "matmul")), None)
        yield Fault(
            f"16 bits gain neither time nor memory: {figures}",
            None if first is None else first.site,
            evidence={"time": time, "memory": memory},
        )
    else:
        yield Note(figures)


@check(
    "AMP604", "repeated-casts", level="warning",
    expected="a weight is cast to 16 bits once an autocast region, not at every use",
    fix="leave autocast's weight cache on (cache_enabled=True), and keep one region around the whole forward",
)  # fmt: skip
def repeated_casts(evidence: Evidence) -> Iterator[Result]:
    """A trainable weight is cast once in each outermost autocast region.

    Every further cast costs time, and a copy that is kept for the backward. A pass without gradients may have a cast of its
    own.

    Source: PyTorch docs, `torch.autocast(cache_enabled=)`.
    """
    casts = evidence.census.casts
    if casts:
        worst = casts[0]
        more = f", and {len(casts) - 1} more weights likewise" if len(casts) > 1 else ""
        yield Fault(
            f"{worst.weight} is cast to 16 bits {worst.most} times inside one autocast region{more}",
            worst.site,
            evidence={"weights": {c.weight: c.most for c in casts}},
        )
        return
    yield from without_census(evidence)
    if not any(e.get("enabled") for e in evidence.trace.of("autocast")):
        yield NotRun("no autocast region was entered")
