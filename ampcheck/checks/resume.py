"""Family 7: what a checkpoint keeps of the training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, Inconclusive, NotRun, Result, check

if TYPE_CHECKING:
    from ampcheck.findings import Location
    from ampcheck.scenarios.resume import Resume, State

_WIDTH = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}


def _without(evidence: Evidence) -> Iterator[Result]:
    resume = evidence.resume
    if "resume" in evidence.not_run:
        yield NotRun(evidence.not_run["resume"])
    elif resume is None:
        yield NotRun("no state_dict and load_state_dict are declared (ampcheck.Training)")
    elif resume.at_stop is None:
        yield NotRun("the run did not come to the point at which it is stopped")
    elif resume.resumed is not None and resume.resumed.trace.raised is not None:
        raised = resume.resumed.trace.raised
        yield Fault(f"the resumed run raises: {raised}", raised.site)
    elif resume.loaded is None or resume.continued is None or resume.went_on is None:
        yield Inconclusive("the resumed run did not get as far as the one that went on")


@check(
    "AMP701",
    "scaler-in-checkpoint",
    expected="the checkpoint holds the loss scale and the growth tracker",
    fix="save scaler.state_dict() and load it back",
    follows=("AMP111",),
)
def scaler_in_checkpoint(evidence: Evidence) -> Iterator[Result]:
    """The scaler's state is saved and restored.

    A run is stopped with a loss scale that no new scaler has, and a fresh build loads its checkpoint: its scaler must have that scale and
    growth tracker.

    Source: PyTorch docs, "Automatic Mixed Precision" recipe, "Saving/Resuming".
    """
    resume = evidence.resume
    if resume is None or resume.at_stop is None or resume.loaded is None or not resume.at_stop.scalers:
        found = [r for r in _without(evidence) if not isinstance(r, Fault)]
        yield from found
        if not found:
            yield NotRun(evidence.why_no_scaler())
        return
    # A scaler that is made lazily is not there yet right after loading: then what counts is the run that goes on.
    for saved in resume.at_stop.scalers:
        if resume.loaded.scalers and not _holds(saved, resume.loaded.scalers):
            others = [s for s in resume.loaded.scalers if not _holds(s, resume.at_stop.scalers)]
            fresh = (others or resume.loaded.scalers)[0]
            yield Fault(
                f"saved with loss scale {saved[0]:g} and {saved[1]} clean steps counted; a build that loaded the checkpoint has {fresh[0]:g} and {fresh[1]}",
                resume.saved_at or evidence.declared.get("state_dict_site"),
            )
            return


def _holds(saved: tuple[float, int | None], there: list[tuple[float, int | None]]) -> bool:
    return any(scale == saved[0] and (tracker == saved[1] or None in (tracker, saved[1])) for scale, tracker in there)


@check(
    "AMP702",
    "resume-equivalence",
    expected="a resumed run goes on as the one that was not stopped",
    fix="restore everything that state_dict() saved before the first step, into the objects that the loop uses",
    follows=("AMP701", "AMP703", "AMP111"),
)
def resume_equivalence(evidence: Evidence) -> Iterator[Result]:
    """Stop-and-resume equals going on: parameters, their averages, optimizer state, learning rates and the loss scale in use.

    What a step takes from outside its checkpoint (the next batch, random numbers) is not judged: gradients are compared only where everything
    that went in was the same.

    Source: PyTorch docs, "Saving and Loading Models", checkpoints for resuming training.
    """
    resume = evidence.resume
    problems = list(_without(evidence))
    yield from problems
    if (
        problems
        or resume is None
        or resume.at_stop is None
        or resume.loaded is None
        or resume.continued is None
        or resume.went_on is None
    ):
        return
    lost = [s for s in resume.went_on.scalers if resume.continued.scalers and not _holds(s, resume.continued.scalers)]
    same_steps = len(resume.went_on.scalers) == len(resume.continued.scalers)
    if lost and same_steps and resume.gradients[0] == resume.gradients[1]:
        now = resume.continued.scalers[0]
        yield Fault(
            f"one step after resuming, the scaler in use has loss scale {now[0]:g} and {now[1]} clean steps counted; the run that went on has {lost[0][0]:g} and {lost[0][1]}",
            resume.made_after_load or evidence.declared.get("load_state_dict_site"),
        )
        return
    if lost and resume.made_after_load is not None:
        yield Fault(
            f"a new scaler is made after loading; it has loss scale {resume.continued.scalers[0][0]:g}, the saved one had {resume.at_stop.scalers[0][0]:g}",
            resume.made_after_load,
        )
        return
    unscaled = _unscaled(resume)
    if unscaled is not None:
        yield Fault(
            "the resumed run takes a step without the loss scaler; the run that went on scales its loss in the same call",
            unscaled,
            fix="keep the scaler that the checkpoint is loaded into: load_state_dict() returns nothing",
        )
        return
    average = _lost_average(resume.at_stop, resume.went_on, resume.loaded, resume.continued)
    if average is not None:
        yield Fault(
            f"the averaged weights {average} are not those that were saved: they begin anew after loading, or come back rounded",
            evidence.declared.get("load_state_dict_site"),
        )
        return
    yield from _apart(resume.went_on, resume.continued, resume.gradients[0] == resume.gradients[1], evidence)


def _unscaled(resume: Resume) -> Location | None:
    """The step of the resumed call where it scales no loss, although the call of the run that went on does."""
    call = resume.run.trace.calls - 1
    trace = resume.resumed.trace if resume.resumed is not None else None
    if trace is None or not any(e.get("enabled") for e in resume.run.trace.of("scale", call=call)):
        return None
    if any(e.get("enabled") for e in trace.of("scale")):
        return None
    return next((e.site for e in trace.steps if e.get("grads") and trace.inside(e, "scaler_step") is None), None)


def _lost_average(at_stop: State, went_on: State, loaded: State, continued: State) -> str | None:
    """A tensor that follows a parameter, and that is another after loading and one step later."""
    return next(
        (
            path
            for path in sorted(went_on.averages)
            if path in loaded.tensors.keys() & continued.tensors.keys() & at_stop.tensors.keys()
            and loaded.tensors[path] != at_stop.tensors[path]
            and continued.tensors[path] != went_on.tensors[path]
        ),
        None,
    )


def _apart(went_on: State, continued: State, same_gradients: bool, evidence: Evidence) -> Iterator[Fault]:
    """Where the two runs are apart after one more call: step counters and learning rates, and all the rest where gradients agree."""
    site = evidence.declared.get("load_state_dict_site")
    there = [path for path in went_on.trained if path in continued.trained]
    apart = [path for path in there if went_on.tensors[path] != continued.tensors[path]]
    counters = sorted(path for path in apart if path.endswith(".step"))
    if counters:
        yield Fault(
            f"one step after resuming, {counters[0]} is not what it is in the run that went on: the count began anew", site
        )
        return
    if len(went_on.groups) == len(continued.groups) and went_on.groups != continued.groups:
        pairs = [
            (a[0], b[0])
            for x, y in zip(went_on.groups, continued.groups, strict=True)
            for a, b in zip(x, y, strict=False)
            if a != b
        ]
        rates = f": {pairs[0][1]:g} instead of {pairs[0][0]:g}" if pairs and pairs[0][0] != pairs[0][1] else ""
        yield Fault(
            f"one step after resuming, the optimizer's learning rate or momentum is another than in the run that went on{rates}",
            site,
        )
        return
    if apart and same_gradients:
        first = min(apart)
        more = f" and {len(apart) - 1} more tensors" if len(apart) > 1 else ""
        yield Fault(f"one step after resuming, with the same gradients, {first}{more} differ from the run that went on", site)


@check(
    "AMP703",
    "loaded-state-dtype",
    expected="loading a checkpoint changes no dtype",
    fix="load into tensors of the saved dtype; keep FP32 master weights and FP32 optimizer state FP32",
    follows=("AMP111",),
)
def loaded_state_dtype(evidence: Evidence) -> Iterator[Result]:
    """No parameter, buffer or optimizer state comes back from a checkpoint in fewer bits.

    Source: PyTorch docs, `torch.optim.Optimizer.load_state_dict`: state is cast to the parameter's dtype.
    """
    resume = evidence.resume
    if resume is None or resume.at_stop is None or resume.loaded is None:
        yield from (r for r in _without(evidence) if not isinstance(r, Fault))
        return
    after = resume.continued or resume.loaded
    for path, dtype in resume.at_stop.dtypes.items():
        now = after.dtypes.get(path, resume.loaded.dtypes.get(path))
        if now is not None and _WIDTH.get(now, 0) < _WIDTH.get(dtype, 0) and _WIDTH.get(now, 0):
            yield Fault(
                f"{path} was {dtype} when it was saved and is {now} after loading",
                evidence.declared.get("load_state_dict_site"),
            )
            return
