"""What a census of the ops of a run holds: plain data, without tensors and without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from ampcheck.findings import Location

__all__ = [
    "LOW",
    "Angle",
    "Census",
    "Foreign",
    "GradientSize",
    "HandNorm",
    "ModuleUse",
    "NormUse",
    "OpUse",
    "Outline",
    "Stale",
    "WeightCasts",
]

#: The 16-bit dtypes, by name.
LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Foreign:
    """An autocast region for another device type than the tensors have.

    Args:
        device: the one it was entered for.
        asked: whether it was made with `enabled=True`.
        site: where it was entered.
    """

    device: str
    asked: bool
    site: Location | None


@dataclass
class OpUse:
    """One kind of op at one place: how often, in which dtypes, under which autocast.

    Args:
        op: name without namespace and overload, such as `addmm`.
        family: "matmul", "loss", "sensitive", "reduction" (to a scalar, or long) or "cast" (of an activation, to 16 bits).
        inputs, outputs: dtypes of its floating-point tensors.
        phase: "forward", "recompute" (a forward inside the backward), "backward" or "hook".
        module, kind: path and class of the innermost module; empty outside of any.
        site: the user's line; of a backward op, the line of the forward op it belongs to.
        device: device type.
        autocast: dtype of the region in force for that device type, or "off".
        island: whether the code switched autocast off inside an enabled region of that device type.
        worker: whether it ran in another thread, where autocast is off, while the step was inside an enabled region.
        foreign: the innermost region around it that is for another device type.
        grad: whether its result takes part in a graph.
        trained: whether a backward went through it.
        source: 16-bit dtype in which an input of a loss or of a logarithm was computed before it was cast up.
        count, flops: how often, and the floating-point operations of all of them (0 outside "matmul").
        odd_flops: those of calls with a layer size that is no multiple of 8; `dims` is the first such call's (m, k, n).
        long: terms of a sum that is a long one.
        squares: whether a mean or sum is one of squares that `pow` took in 16 bits.
        call: index of the call of `step` it was first seen in.
    """

    op: str
    family: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    phase: str
    module: str
    kind: str
    site: Location | None
    device: str
    autocast: str
    island: bool = False
    worker: bool = False
    foreign: Foreign | None = None
    grad: bool = False
    trained: bool = False
    source: str = ""
    count: int = 0
    flops: float = 0.0
    odd_flops: float = 0.0
    dims: tuple[int, ...] = ()
    long: int = 0
    squares: bool = False
    call: int = 0

    @property
    def low(self) -> str:
        """The 16-bit dtype that it ran in, or nothing."""
        return next((d for d in (*self.inputs, *self.outputs) if d in LOW), "")

    @property
    def where(self) -> str:
        """`fc1 (Linear)`, or nothing outside of a module."""
        return f"{self.module} ({self.kind})" if self.module and self.module != self.kind else self.kind


@dataclass
class NormUse:
    """One norm kernel at one place: dtypes of its input, weight and bias, running statistics, output and saved statistics."""

    kernel: str
    module: str
    kind: str
    site: Location | None
    device: str
    autocast: str
    input: str
    weight: str
    running: str
    output: str
    statistics: str
    training: bool
    trainable: bool = False
    count: int = 0
    island: bool = False

    @property
    def where(self) -> str:
        return f"{self.module} ({self.kind})" if self.module and self.module != self.kind else self.kind or self.kernel


@dataclass(frozen=True)
class HandNorm:
    """A norm composed of small ops: a second moment, its root, and the tensor it was taken of divided by that.

    Args:
        low: the ops of the statistics that ran in 16 bits; `dtype` names it.
        epsilon: what was added to the second moment, if anything.
        of_torch: whether torch's own `rms_norm` composed it.
    """

    low: tuple[str, ...]
    dtype: str
    epsilon: float | None
    module: str
    kind: str
    site: Location | None
    of_torch: bool = False


@dataclass(frozen=True)
class Stale:
    """A 16-bit copy of weights that a forward used although it could not stand for them.

    `why`: "no-grad" (it was made while gradients were off, so that the weight gets none) or "stepped" (it was made before the
    optimizer moved the weight).
    """

    why: str
    weight: str
    dtype: str
    op: str
    module: str
    site: Location | None
    call: int


@dataclass(frozen=True)
class Angle:
    """The argument of a sine or cosine that was computed in 16 bits, where these are too coarse for it.

    `largest`: the largest absolute value in it; `step`: the distance of 16-bit numbers there, in radians.
    """

    op: str
    dtype: str
    largest: float
    step: float
    site: Location | None


@dataclass
class WeightCasts:
    """How often one weight was cast to 16 bits inside one outermost autocast region, at most; `regions` with more than one."""

    weight: str
    most: int
    regions: int
    site: Location | None


@dataclass
class Census:
    """The ops of a run, aggregated.

    Args:
        uses: see `OpUse`; norms, hand-made norms, stale casts, angles and repeated casts likewise.
        low_forward, low_backward: whether a 16-bit tensor took part in a graph, or in a backward.
        unused: device type and line of enabled autocast regions that were made and never entered.
        weights: dtype -> number of trainable weights, those of norms left out.
        failed: why the census is not complete; empty if it is.
    """

    uses: list[OpUse] = field(default_factory=list)
    norms: list[NormUse] = field(default_factory=list)
    handmade: list[HandNorm] = field(default_factory=list)
    stale: list[Stale] = field(default_factory=list)
    angles: list[Angle] = field(default_factory=list)
    casts: list[WeightCasts] = field(default_factory=list)
    low_forward: bool = False
    low_backward: bool = False
    weights: dict[str, int] = field(default_factory=dict)
    unused: list[tuple[str, Location]] = field(default_factory=list)
    failed: str = ""

    def of(self, *families: str) -> list[OpUse]:
        return [use for use in self.uses if use.family in families]


@dataclass
class ModuleUse:
    """One module: path, class, dtypes of its own parameters ("" if it has none), and how often it returned which dtype.

    `sites`: the user's line that first called it, by the dtype that it returned.
    """

    module: str
    kind: str
    parameters: str
    outputs: dict[str, int] = field(default_factory=dict)
    sites: dict[str, Location | None] = field(default_factory=dict)


@dataclass
class GradientSize:
    """The unscaled gradient that entered an optimizer: norm and largest absolute value, `None` where it was not finite.

    `event` is the index of the optimizer's step in the trace.
    """

    call: int
    optimizer: int
    event: int
    norm: float | None = None
    peak: float | None = None


@dataclass
class Outline:
    """What is recorded of a run for people to look at: its modules in the order of the model, its gradients in that of the steps."""

    modules: list[ModuleUse] = field(default_factory=list)
    gradients: list[GradientSize] = field(default_factory=list)
