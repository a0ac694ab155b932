"""Writes a contract for what was found in a project; what cannot be told from the source becomes a TODO that fails when it runs."""

from __future__ import annotations

import json
import keyword
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ampcheck.cli.discover import Function, Model, Project
from ampcheck.report.text import one_line

__all__ = ["render"]

#: What people call the arguments of a function that trains -> what they are given.
ARGUMENTS = {
    "model": "model network net module",
    "optimizer": "optimizer optim opt optimiser",
    "scaler": "scaler grad_scaler gradscaler loss_scaler",
    "amp_device": "device dev device_type",
    "scheduler": "scheduler lr_scheduler sched",
    "criterion": "criterion loss_fn loss_func loss_function crit",
    "[batch]": "loader dataloader data_loader train_loader train_dataloader trainloader train_data batches",
    "batch": "batch data sample batch_data",
    "inputs": "inputs input x images image imgs img features src tokens input_ids xb",
    "targets": "targets target y labels label tgt yb",
    "0": "epoch step global_step iteration it i batch_idx idx",
    "1": "accumulation_steps accum_steps grad_accum gradient_accumulation_steps accumulate log_interval print_freq epochs num_epochs",
    "1.0": "max_norm clip grad_clip clip_norm max_grad_norm clip_grad clip_value",
    "torch.float16": "dtype amp_dtype autocast_dtype",
    "True": "use_amp amp fp16 enabled use_fp16 mixed_precision",
}
#: Settings that a loop reads.
SETTINGS = {"lr": "1e-3", "dry_run": "False", "debug": "False", "verbose": "False", "quiet": "True", "distributed": "False"}
KNOWN = {name: value for value, names in ARGUMENTS.items() for name in names.split()}
#: Sizes for arguments of a model that have no default.
SIZES = {
    10: "num_classes n_classes classes nclass num_labels out_features output_dim out_dim output_size",
    3: "in_channels channels in_chans in_ch",
    32: "hidden hidden_dim hidden_size width dim d_model embed_dim embedding_dim in_features input_dim in_dim input_size features",
    100: "vocab_size vocabulary n_tokens num_embeddings ntoken",
    2: "num_layers layers depth n_layers nlayers",
    4: "num_heads heads nhead n_heads",
    16: "max_len seq_len block_size context_length length",
}
GUESSED = {name: size for size, names in SIZES.items() for name in names.split()}


@dataclass
class _Draft:
    """The parts of the contract while it is put together."""

    project: Project
    imports: dict[str, list[str]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    roots: list[Path] = field(default_factory=list)

    def need(self, module: str, name: str, root: Path | None) -> str:
        names = self.imports.setdefault(module, [])
        if name not in names:
            names.append(name)
        if root is not None and root not in self.roots:
            self.roots.append(root)
        return name

    def todo(self, what: str) -> str:
        self.open.append(what)
        return f"...  # TODO: {what}"


def render(project: Project, target: Path, installed: frozenset[Path] = frozenset()) -> str:
    """The source of the file.

    Args:
        project: as it was found.
        target: where it is going to stand.
        installed: directories that are on the path wherever tests run.
    """
    draft = _Draft(project)
    function = project.functions[0] if project.functions else None
    model = _choose(project, function)
    if function is None and model is not None and model.lightning:
        body = [*_lightning(draft, model)]
    elif function is None:
        draft.todo("call your own training step here; no function with a backward() was found")
        body = [
            *_parts(draft, None, model),
            "def step():",
            "    ...  # TODO: one optimizer step of your own code",
            "",
            "return step",
        ]
    else:
        step = [*_step(draft, function)]
        said, draft.open = draft.open, []
        used = set(re.findall(r"\b\w+\b(?!=)", "\n".join(line.partition("#")[0] for line in step)))
        # What the project's own code makes itself is not made twice.
        own = function.owner is not None and not function.builds and not used & {"model", "optimizer"}
        parts = [*_parts(draft, function, model, made=not own)]
        draft.open += said
        if not function.builds:
            parts = [line for line in parts if line.partition(" = ")[0] not in {"batch", "optimizer", "scaler"} - used]
        body = [*parts, *step, "", _returned(function)]
    return _file(draft, body, target, installed)


def _choose(project: Project, function: Function | None) -> Model | None:
    """The model that is trained: one that is no part of another, made somewhere, near the function."""
    candidates = [m for m in project.models if not m.inside] or project.models

    def rank(model: Model) -> tuple[bool, bool, int]:
        return model.name not in project.made, function is None or model.module != function.module, -len(model.layers)

    return min(candidates, key=rank, default=None)


def _file(draft: _Draft, body: list[str], target: Path, installed: frozenset[Path]) -> str:
    roots = [root for root in draft.roots if root not in installed]
    folder = target.resolve().parent
    path = [f"sys.path.insert(0, str({_up(folder, root)}))" for root in roots]
    head = ['"""The mixed-precision contract of this project, for `pytest --ampcheck`.', ""]
    head += [
        "`ampcheck init` wrote it from what it read in the source; lines with TODO are guesses, or what it could not tell.",
        '"""',
        "",
    ]
    head += ["import sys", "from pathlib import Path", ""] if path else []
    head += ["import ampcheck", ""]
    head += ["# so that the project is found; not needed where it is installed", *path, ""] if path else []
    imports = ["import torch", "", *(_import(m, sorted(n)) for m, n in sorted(draft.imports.items()))]
    lines = [*imports, "", "torch.manual_seed(0)", *body]
    if draft.open:
        first = f"{target.name} is not finished: {draft.open[0]}" + (
            f" (and {len(draft.open) - 1} more)" if draft.open[1:] else ""
        )
        open_ones = [f"# TODO: {what}" for what in draft.open[1:]]
        lines = [f"raise NotImplementedError({_quoted(first)})  # TODO: remove this line then", *open_ones, "", *lines]
    others = [f"#   {_place(draft.project, f)} in {_name(f)}" for f in draft.project.functions[1:9]]
    tail = ["", "", "# Other functions that train, each worth a contract of its own:", *others] if others else []
    code = textwrap.indent("\n".join(lines), "    ")
    text = "\n".join([*head, "", "@ampcheck.contract", "def training_step(amp_device):", code, *tail]) + "\n"
    return re.sub(r"\n(?:[ ]*\n)+(?=    )", "\n\n", text)


def _import(module: str, names: list[str]) -> str:
    if all(part.isidentifier() and not keyword.iskeyword(part) for part in module.split(".")):
        return f"from {module} import {', '.join(names)}"
    made = [f"{name} = importlib.import_module({_quoted(module)}).{name}" for name in names]
    return "\n".join(["import importlib", "", *made])  # a file whose name is none in Python


def _quoted(text: str) -> str:
    """A string literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _up(folder: Path, root: Path) -> str:
    relative = Path(os.path.relpath(root.resolve(), folder)).as_posix()
    return f"Path(__file__).resolve().parent.joinpath({_quoted(relative)}).resolve()"


def _place(project: Project, function: Function) -> str:
    return one_line(f"{function.file.relative_to(project.root).as_posix()}:{function.line}", 200)


def _name(function: Function) -> str:
    return f"{function.owner}.{function.name}" if function.owner else function.name


def _parts(draft: _Draft, function: Function | None, model: Model | None, made: bool = True) -> Iterator[str]:
    """Model, optimizer, scaler and batch; without `made` the model is one that somebody else makes."""
    project = draft.project
    if function is not None:
        place = f"{_place(project, function)} {_name(function)}()"
        if function.builds:
            draft.todo(
                f"{place} makes its own optimizer, so it is the whole training: move the body of its loop into a function"
            )
        if function.shared:
            draft.todo(
                f"{place} uses {', '.join(function.shared)} of its module, which builds would share: make them arguments"
            )
        if function.file in project.scripts:
            draft.todo(
                f"importing {one_line(function.file.name)} trains: put what is at its top level under if __name__ == '__main__':"
            )
    elif project.scripts:
        draft.todo(f"{one_line(project.scripts[0].name)} trains when it is imported: move the body of its loop into a function")
    if not made:
        pass
    elif model is None:
        yield f"model = {draft.todo('a small model of yours, on amp_device')}"
    else:
        name = draft.need(model.module, model.name, model.root)
        yield f"model = {name}({_made(draft, model)}).to(amp_device)"
    kind, options = project.optimizers[0] if project.optimizers else ("AdamW", {"lr": 1e-3})
    kept = {k: v for k, v in options.items() if isinstance(v, (bool, int, float, tuple))}
    if kind == "SGD":
        kept.setdefault("lr", 0.1)
    given = "".join(f", {name}={value!r}" for name, value in kept.items())
    yield f"optimizer = torch.optim.{kind}(model.parameters(){given})"
    if project.scaler:
        yield "scaler = torch.amp.GradScaler(amp_device)"
    yield from _batch(draft, function, model)
    yield ""


def _made(draft: _Draft, model: Model) -> str:
    if model.name in draft.project.made:
        return draft.project.made[model.name]
    needed = [name for name, default in model.parameters.items() if default is ...]
    unknown = [name for name in needed if name not in GUESSED]
    if unknown:
        draft.todo(f"what {model.name}() takes for {', '.join(unknown)}")
    return ", ".join(f"{name}={GUESSED.get(name, '...')}" for name in needed)


def _batch(draft: _Draft, function: Function | None, model: Model | None) -> Iterator[str]:
    sizes = model.sizes(draft.project.made.get(model.name, _made(_Draft(draft.project), model))) if model is not None else []
    inputs, why = _inputs(sizes)
    outs = [a[1] for kind, a in sizes if kind == "Linear" and len(a) > 1 and isinstance(a[1], int)]
    calls = set(draft.project.criteria) | (function.calls if function is not None else set())
    tokens = "randint" in inputs
    classes = outs[-1] if outs else 10
    if calls & {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"}:
        targets = f"torch.randint({classes}, ({'8, 16' if tokens else '8,'}), device=amp_device)"
    elif calls & {"BCEWithLogitsLoss", "BCELoss", "binary_cross_entropy_with_logits"}:
        targets = f"torch.rand(8, {classes}, device=amp_device)"
    else:
        targets = f"torch.randn(8, {classes if outs else 1}, device=amp_device)"
    yield f"inputs = {inputs}  # TODO: a small batch of the right shape; {why}"
    yield f"targets = {targets}  # TODO: the same"
    names = function.unpacks if function is not None else []
    given = [
        "targets" if KNOWN.get(n.lower()) == "targets" or (i and i == len(names) - 1) else "inputs" for i, n in enumerate(names)
    ]
    if function is not None and function.by_key:
        yield f"batch = {{{', '.join(f'{_quoted(n)}: {g}' for n, g in zip(names, given, strict=True))}}}"
    elif len(given) == 1:
        yield f"batch = {given[0]}"
    else:
        yield f"batch = ({', '.join(given or ['inputs', 'targets'])})"


def _inputs(sizes: list[tuple[str, list[object]]]) -> tuple[str, str]:
    """Source of inputs for the first layer whose size is known, and why."""
    shapes = {
        "Linear": "8, {}",
        "Conv1d": "8, {}, 32",
        "Conv2d": "8, {}, 32, 32",
        "Conv3d": "8, {}, 8, 16, 16",
        "LSTM": "8, 16, {}",
    }
    shapes["GRU"] = shapes["LSTM"]
    for kind, arguments in sizes:
        if arguments and isinstance(arguments[0], int):
            size = arguments[0]
            if kind == "Embedding":
                return f"torch.randint({size}, (8, 16), device=amp_device)", f"the model begins with {kind}({size}, ...)"
            if kind == "Conv2d" and size == 1:
                return "torch.randn(8, 1, 28, 28, device=amp_device)", "the model begins with Conv2d(1, ...)"
            if kind in shapes:
                return (
                    f"torch.randn({shapes[kind].format(size)}, device=amp_device)",
                    f"the model begins with {kind}({size}, ...)",
                )
    return "torch.randn(8, 32, device=amp_device)", "nothing in the model says which"


def _step(draft: _Draft, function: Function) -> Iterator[str]:
    if function.builds:
        yield from ("def step():", "    ...  # TODO: call it here: model, optimizer, scaler and batch are made above")
        return
    extra: dict[str, str] = {}
    called = function.name
    if function.owner is not None:
        owner = draft.need(function.module, function.owner, function.root)
        made = _given(draft, function, function.owner_parameters, extra, owner)
        yield f"trainer = {owner}({made}){_missing(made)}"
        called = f"trainer.{function.name}"
    else:
        draft.need(function.module, function.name, function.root)
    given = _given(draft, function, function.parameters, extra, _name(function))
    yield from (f"{name} = {value}" for name, value in extra.items())
    yield ""
    yield f"def step():  # one optimizer step of your own code: {_place(draft.project, function)}"
    yield f"    return {called}({given}){_missing(given)}"


def _returned(function: Function) -> str:
    if not function.resumes or function.builds:
        return "return step"
    return "return ampcheck.Training(step, state_dict=trainer.state_dict, load_state_dict=trainer.load_state_dict)"


def _given(draft: _Draft, function: Function, parameters: dict[str, bool], extra: dict[str, str], what: str) -> str:
    """Source of the arguments for a function, by name."""
    given = []
    for name, optional in parameters.items():
        value = "[batch]" if name == function.iterates else KNOWN.get(name.lower())
        if optional and value in (None, "0", "1", "1.0"):
            continue  # its own default
        if value is None and name in function.settings:
            value = _settings(draft, name, function.settings[name])
        elif value is None:
            draft.todo(f"what {what}() takes for {name}")
            value = "..."
        elif value == "scaler" and not draft.project.scaler:
            extra["scaler"] = "torch.amp.GradScaler(amp_device)"
        elif value == "scheduler":
            extra["scheduler"] = "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 1.0)"
        elif value == "criterion":
            extra["criterion"] = (
                f"torch.nn.{draft.project.criteria[0]}()" if draft.project.criteria else draft.todo("the loss function")
            )
        given.append(f"{name}={value}")
    return ", ".join(given)


def _settings(draft: _Draft, name: str, attributes: list[str]) -> str:
    """Source of an object with the settings that are read of a parameter."""
    values = {a: SETTINGS.get(a.lower(), KNOWN.get(a.lower(), "...")) for a in attributes}
    unknown = [a for a, value in values.items() if value == "..."]
    if unknown:
        draft.todo(f"the values of {', '.join(f'{name}.{a}' for a in unknown)}")
    draft.need("types", "SimpleNamespace", None)
    return f"SimpleNamespace({', '.join(f'{a}={value}' for a, value in values.items())})"


def _missing(given: str) -> str:
    """A comment for arguments that could not be told."""
    names = re.findall(r"(\w+)=\.\.\.", given)
    return f"  # TODO: {', '.join(names)}" if names else ""


def _lightning(draft: _Draft, model: Model) -> Iterator[str]:
    name = draft.need(model.module, model.name, model.root)
    yield "import lightning  # TODO: or pytorch_lightning"
    yield ""
    yield f"model = {name}({_made(draft, model)})"
    yield from (line for line in _batch(draft, None, model) if not line.startswith("batch"))
    yield "loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs.cpu(), targets.cpu()), batch_size=8)"
    yield "trainer = lightning.Trainer("
    yield '    max_steps=6, precision="16-mixed", accelerator="gpu" if amp_device == "cuda" else amp_device, devices=1,'
    yield "    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,"
    yield ")"
    yield ""
    yield "return ampcheck.Training(lambda: trainer.fit(model, loader), calls=1, model=model)"
