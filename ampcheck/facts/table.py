"""An autocast table: its rows, how to look one up, how two of them differ, and its file format. No torch here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["Change", "Kernel", "Norm", "Origin", "Policy", "Row", "Table", "op_name"]

#: Version of the file format.
SCHEMA_VERSION = 1
#: low: float32 inputs are cast to the region's dtype; fp32: 16-bit inputs are cast (or the op told to compute) in FP32;
#: promote: mixed inputs are cast to the widest; leave: autocast does not touch the op; refused: autocast raises.
Policy = Literal["low", "fp32", "promote", "leave", "refused", "unmeasured"]
Origin = Literal["shipped", "measured", "nearest", "file"]


class Kernel(NamedTuple):
    """An op as a dispatch mode sees it, below autocast: its name and the dtypes of its float inputs and outputs."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """What one function gave: the dtype of its first float output and the kernels it ran, or why it could not run."""

    output: str | None
    kernels: tuple[Kernel, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Norm:
    """What one norm gave.

    Args:
        output: dtype of the normalised tensor; `None` if it could not run.
        statistics: dtype of the mean and inverse standard deviation that the kernel saves for the backward; `None` where
            it saves none (a norm composed of small ops, or evaluation).
        kernel: the op that saved them.
        bias_gradient: the sum over the batch for the bias gradient: `"fp32"`, `"rounded"` (an FP32 sum, stored in 16 bits) or
            `"lossy"` (summed in 16 bits, an error of many units that is the kernel's own); `None` without a bias.
        error: why it could not run.
    """

    output: str | None
    statistics: str | None = None
    kernel: str | None = None
    bias_gradient: str | None = None
    error: str = ""


class Change(NamedTuple):
    """One difference between two tables."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.after}"


def op_name(op: object) -> str:
    """`native_layer_norm` of `"aten.native_layer_norm.default"`, of `"aten::native_layer_norm"` and of the op itself.

    The namespace of ops that are not aten's is kept: `torchvision::nms`.
    """
    name = str(op)
    for prefix in ("torch.ops.", "torch.nn.functional.", "torch.", "F."):
        name = name.removeprefix(prefix)
    parts = name.replace("::", ".").split(".")
    if "::" not in name and len(parts) < 3:
        return parts[1] if parts[0] == "aten" else parts[0]
    return parts[1] if parts[0] == "aten" else f"{parts[0]}::{parts[1]}"


def _dtype(dtype: object) -> str:
    return "off" if dtype is None else str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Table:
    """Autocast on one device type under one torch, as measured.

    Dtypes are given as names (`"float16"`) or as torch's own; `amp_dtype` `None` is "autocast off". Ops are given by any
    of their names: `"layer_norm"`, `"aten.addmm.default"`, the op itself. What was not measured is `None`, never a guess.

    Args:
        device: device type.
        torch: version that it was measured with.
        device_name: the hardware that it was measured on.
        policies: op -> `Policy`, for every op that the dispatcher knows an autocast kernel of.
        lowered: kernel below autocast -> the functions whose operands reached it in 16 bits: `convolution` -> `conv2d`.
        rows: (function, amp dtype or "off", input dtype or "mixed") -> `Row`.
        norms: (norm, "train" or "eval" where they differ, amp dtype or "off", input dtype, weight dtype or "none") -> `Norm`.
        origin: where this table comes from.
        note: what to tell the user about that, if anything.
    """

    device: str
    torch: str
    device_name: str
    policies: Mapping[str, Policy]
    lowered: Mapping[str, tuple[str, ...]]
    rows: Mapping[tuple[str, str, str], Row]
    norms: Mapping[tuple[str, str, str, str, str], Norm]
    origin: Origin = "measured"
    note: str = ""
    _functions: dict[str, set[str]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for (function, _, _), row in self.rows.items():
            for kernel in row.kernels:
                self._functions.setdefault(kernel.name, set()).add(function)

    # -- lookup --------------------------------------------------------------------------------------------------------

    def policy(self, op: object) -> Policy:
        """What autocast does to the inputs of `op`; ops that it has no kernel of are left alone."""
        return self.policies.get(op_name(op), "leave")

    def casts_to_low(self, op: object) -> bool:
        """Whether autocast makes `op` run in the region's dtype on float32 inputs.

        True for ops on autocast's own list, for the kernels that these are lowered to (`aten.convolution` under
        `conv2d`), and for functions that are composed of them (`einsum`).
        """
        name = op_name(op)
        if name in self.policies:
            return self.policies[name] == "low"
        if name in self.lowered:
            return True
        outputs = {self.output_dtype(name, amp, "float32") for amp in ("float16", "bfloat16")}
        return bool(outputs - {None}) and not outputs & {"float32"}

    def casts_to_fp32(self, op: object) -> bool:
        """Whether autocast makes `op` compute in FP32 on 16-bit inputs."""
        return self.policy(op) == "fp32"

    def promotes(self, op: object) -> bool:
        """Whether autocast casts mixed inputs of `op` to the widest of their dtypes."""
        return self.policy(op) == "promote"

    def functions_of(self, kernel: object) -> tuple[str, ...]:
        """The functions that were seen to run `kernel`: `("softmax",)` of `aten._softmax.default`."""
        return tuple(sorted(self._functions.get(op_name(kernel), ())))

    def row(self, op: object, amp_dtype: object, input_dtype: object) -> Row | None:
        return self.rows.get((op_name(op), _dtype(amp_dtype), _dtype(input_dtype)))

    def output_dtype(self, op: object, amp_dtype: object, input_dtype: object) -> str | None:
        """The dtype that a function returns, weights in FP32.

        Args:
            op: function, such as `"layer_norm"` or `"cross_entropy"`.
            amp_dtype: dtype of the autocast region; `None` is outside of any.
            input_dtype: dtype of the activations; `"mixed"` is a 16-bit one together with a float32 one.
        """
        row = self.row(op, amp_dtype, input_dtype)
        return None if row is None else row.output

    def norm(
        self, norm: object, amp_dtype: object, input_dtype: object, weight_dtype: object = "float32", *, training: bool = True
    ) -> Norm | None:
        """What a norm does.

        Args:
            norm: `"batch_norm"`, `"layer_norm"`, `"group_norm"`, `"instance_norm"`, `"rms_norm"` or `"sync_batch_norm"`, or
                the kernel that one of them runs (`"aten.native_layer_norm.default"`).
            amp_dtype: dtype of the autocast region; `None` is outside of any.
            input_dtype: dtype of the activations.
            weight_dtype: dtype of weight, bias and running statistics; `"none"` is no weight.
            training: whether batch statistics are used.
        """
        name = op_name(norm)
        if all(key[0] != name for key in self.norms):
            # BatchNorm stands before InstanceNorm, which runs the same kernel: a kernel alone cannot tell them apart.
            name = next((key[0] for key, entry in self.norms.items() if entry.kernel == name), name)
        dtypes = (_dtype(amp_dtype), _dtype(input_dtype), _dtype(weight_dtype))
        evaluation = None if training else self.norms.get((name, "eval", *dtypes))
        # LayerNorm and its like have no evaluation of their own.
        return evaluation or self.norms.get((name, "train", *dtypes))

    def saved_statistics(
        self, norm: object, amp_dtype: object, input_dtype: object, weight_dtype: object = "float32", *, training: bool = True
    ) -> str | None:
        """The dtype of the saved mean and inverse standard deviation of a norm; see `norm` for the arguments."""
        found = self.norm(norm, amp_dtype, input_dtype, weight_dtype, training=training)
        return None if found is None else found.statistics

    # -- comparison ----------------------------------------------------------------------------------------------------

    def diff(self, other: Table) -> list[Change]:
        """What moved from this table to `other`: policies, outputs, saved statistics; kernels are not compared."""
        changes = [
            Change(f"autocast list, {op}", self.policy(op), other.policy(op))
            for op in sorted({*self.policies, *other.policies})
            if self.policy(op) != other.policy(op) and "unmeasured" not in (self.policy(op), other.policy(op))
        ]
        absent = Row(None, error="not measured")
        for row_key in sorted({*self.rows, *other.rows}, key=lambda key: (key[0], key[1] == "off", key)):
            before, after = self.rows.get(row_key, absent), other.rows.get(row_key, absent)
            if before.output != after.output:
                function, amp, given = row_key
                changes.append(Change(f"{function}, {_region(amp)}, {given} input, output", _shown(before), _shown(after)))
        missing = Norm(None, error="not measured")
        for norm_key in sorted({*self.norms, *other.norms}, key=lambda key: (key[0], key[2] == "off", key)):
            first, second = self.norms.get(norm_key, missing), other.norms.get(norm_key, missing)
            name, mode, amp, given, weight = norm_key
            where = f"{name} {mode}, {_region(amp)}, {given} input, {weight} weight"
            if first.output != second.output:
                changes.append(Change(f"{where}, output", _shown(first), _shown(second)))
                if first.output is None or second.output is None:
                    continue
            if first.statistics != second.statistics:
                changes.append(Change(f"{where}, saved statistics", str(first.statistics), str(second.statistics)))
            if first.bias_gradient != second.bias_gradient:
                changes.append(Change(f"{where}, bias gradient", str(first.bias_gradient), str(second.bias_gradient)))
        return changes

    # -- file ----------------------------------------------------------------------------------------------------------

    def dumps(self) -> str:
        """The table as JSON with one entry a line, so that version control shows what moved."""

        def block(entries: Iterator[tuple[str, Any]]) -> str:
            return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries) + "\n }"

        def pruned(entry: Row | Norm) -> dict[str, Any]:
            return {key: value for key, value in vars(entry).items() if value or key == "output"}

        head = {"version": SCHEMA_VERSION, "torch": self.torch, "device": self.device, "device_name": self.device_name}
        parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        parts.append(' "policies": ' + block(iter(sorted(self.policies.items()))))
        parts.append(' "lowered": ' + block((key, list(value)) for key, value in sorted(self.lowered.items())))
        parts.append(' "rows": ' + block(("|".join(key), pruned(row)) for key, row in self.rows.items()))
        parts.append(' "norms": ' + block(("|".join(norm_key), pruned(norm)) for norm_key, norm in self.norms.items()))
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def save(self, path: Path) -> None:
        path.write_text(self.dumps(), encoding="utf-8")

    @classmethod
    def read(cls, path: Path, origin: Origin, note: str = "") -> Table:
        """Read a file that `save` wrote.

        Raises:
            ValueError: if it is something else.
        """
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("version") != SCHEMA_VERSION:
            raise ValueError(f"{path} is no autocast table of version {SCHEMA_VERSION}; `ampcheck facts --out` writes one")
        rows, norms = {}, {}
        for joined, entry in data["rows"].items():
            function, amp, given = joined.split("|")
            kernels = tuple(Kernel(name, tuple(inputs), tuple(outputs)) for name, inputs, outputs in entry.pop("kernels", []))
            rows[function, amp, given] = Row(kernels=kernels, **entry)
        for joined, entry in data["norms"].items():
            name, mode, amp, given, weight = joined.split("|")
            norms[name, mode, amp, given, weight] = Norm(**entry)
        lowered = {kernel: tuple(functions) for kernel, functions in data["lowered"].items()}
        return cls(data["device"], data["torch"], data["device_name"], data["policies"], lowered, rows, norms, origin, note)


def _region(amp: str) -> str:
    return "autocast off" if amp == "off" else f"{amp} autocast"


def _shown(entry: Row | Norm) -> str:
    return entry.output if entry.output is not None else f"none ({entry.error})"
