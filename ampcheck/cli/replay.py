"""`ampcheck replay`: look into an evidence bundle, and run its step again from the project's own code."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcheck.bundle import file
from ampcheck.cli.style import say
from ampcheck.errors import UsageError
from ampcheck.report.text import clean, one_line

if TYPE_CHECKING:
    from ampcheck.bundle.replaying import Replayed

EXAMPLE = """A bundle is loaded as tensors and plain data: nothing in it is executed. Replaying runs the contract of that name from the
project in the current directory, which is your own code.

examples:
  ampcheck replay evidence/resnet.ampcheck.pt --show     what is in it; runs nothing
  ampcheck replay evidence/resnet.ampcheck.pt            run its step again: 1 if it goes wrong again, 0 if not"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    bundle = parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="a file that --ampcheck-evidence left")
    bundle.completer = None  # type: ignore[attr-defined]  # files, then
    parser.add_argument("--show", action="store_true", help="show what is in the bundle, and run nothing")
    parser.add_argument(
        "--contract",
        metavar="PATH::NAME",
        help="the contract to run; that of the bundle if left out (NAME[params] where it has any)",
    )
    parser.add_argument("--device", help="device type to run on; that of the bundle if left out")
    parser.add_argument(
        "--largest", type=int, default=file.LARGEST, metavar="BYTES", help="refuse a larger file (default: %(default)s)"
    )


def main(options: argparse.Namespace) -> int:
    """Show a bundle, or replay it.

    Returns:
        1 if what went wrong did so again, else 0.
    """
    bundle = file.read(options.bundle, options.largest)
    for line in shown(bundle):
        say(line)
    if options.show:
        return 0
    from ampcheck.bundle.replaying import replay
    from ampcheck.session.devices import check_device, missing
    from ampcheck.session.replaying import run

    contract, device = options.contract or bundle["contract"], check_device(options.device or bundle["device"], "--device")
    if reason := missing(device):
        raise UsageError(f"{reason}; --device runs the step on another one")
    result: Replayed = run(contract, device, lambda build, name: replay(build, bundle, name))
    say()
    for line in compared(result, bundle):
        say(line)
    return _verdict(result, bundle)


def shown(bundle: Mapping[str, Any]) -> Iterator[str]:
    """What is in a bundle, a line each; foreign text is made safe to print."""
    yield f"evidence  {one_line(bundle['contract'])} [{one_line(bundle['device'], 40)}], call {bundle['call'] + 1}"
    yield from (f"because   {one_line(reason)}" for reason in bundle["why"])
    facts = [
        f"{one_line(k, 40)} {one_line(v, 60)}" for k, v in bundle["environment"].items() if isinstance(v, (str, int, float))
    ]
    yield f"on        {', '.join(facts[:8])}"
    scales = [entry for entry in bundle["scale"] if isinstance(entry, Mapping)]
    if scales:
        yield f"scale     {', '.join(_scale(s.get('scale')) + (' (skipped)' if s.get('skipped') else '') for s in scales[:40])}"
    yield from (f"gradient  {_row(row)}" for row in bundle["steps"][:40] if isinstance(row, Mapping))
    yield from _returned(bundle["judged"].get("returned"), bundle["judged"].get("raised"))
    if bundle["judged"].get("unwatched"):
        yield f"missing   some of it: an error of ampcheck's own, please report it: {one_line(bundle['judged']['unwatched'])}"
    yield from _first(bundle["first_nonfinite"], bundle["first_module"])
    for finding in bundle["findings"][:20]:
        if isinstance(finding, Mapping):
            yield f"finding   {one_line(finding.get('id'), 20)} {one_line(finding.get('seen'))}"
    for name in ("states", "batch"):
        held = bundle[name]
        state = f"{held.get('bytes')} bytes" if held.get("kept") else "not held"
        reason = f": {one_line(held['reason'])}" if held.get("reason") else ""
        yield f"{name:<10}{one_line(state)}{reason}"
        if held.get("kept") and name == "batch":
            yield from (f"          {one_line(_tensor(t))}" for t in held.get("tensors", [])[:20])


def compared(result: Replayed, bundle: Mapping[str, Any]) -> Iterator[str]:
    """What the call did this time."""
    yield f"replayed  call {bundle['call'] + 1}" + ("" if result.reached else ": the run ended before it")
    yield from (f"restored  {what}" for what in result.restored)
    yield from (f"missing   {one_line(what)}" for what in result.lost)
    yield from (f"gradient  {_row(row)}" for row in result.steps)
    yield from _returned(result.returned, result.raised)
    yield from _first(None, result.module)
    yield from (f"seen      {one_line(what)}" for what in result.not_finite)


def _verdict(result: Replayed, bundle: Mapping[str, Any]) -> int:
    ids = ", ".join(sorted({str(f.get("id")) for f in bundle["findings"] if isinstance(f, Mapping)}))
    if result.reproduced:
        say("REPRODUCED: the call goes wrong again", "red")
        return 1
    if result.not_finite or result.raised:
        say("ANOTHER FAULT: the call went well when the bundle was written, or failed later", "red")
        return 1
    if result.before.get("not finite"):
        say("NOT REPRODUCED: the call goes well now", "green")
    else:
        hint = f"; `pytest --ampcheck` judges {one_line(ids)} by comparing it with other runs" if ids else ""
        say(f"AS RECORDED: the call itself stays finite, as it did{hint}", "green")
    return 0


def _scale(scale: Any) -> str:
    if not isinstance(scale, float) or not math.isfinite(scale) or scale <= 0:
        return one_line(scale, 40)
    power = math.log2(scale)
    return f"2^{power:g}" if power == int(power) else f"{scale:g}"


def _row(row: Mapping[str, Any]) -> str:
    taken = "taken" if row.get("taken") is True else "skipped" if row.get("taken") is False else "not used"
    return (
        f"call {_call(row.get('call'))}, optimizer {one_line(row.get('optimizer'), 20)}: norm {_number(row.get('norm'))}, "
        f"peak {_number(row.get('peak'))} (scaled {_number(row.get('scaled_peak'))} at {_scale(row.get('scale'))}), step {taken}"
    )


def _call(call: Any) -> str:
    """A call as people count: the first is 1."""
    return str(call + 1) if isinstance(call, int) and abs(call) <= file.MOST_CALLS else "?"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-"


def _returned(returned: Any, raised: Any) -> Iterator[str]:
    if isinstance(returned, Mapping) and returned:
        yield f"returned  {', '.join(f'{one_line(k, 60)} {_number(v)}' for k, v in list(returned.items())[:10])}"
    if raised is not None:
        yield f"raised    {one_line(raised)}"


def _first(origin: Any, module: Any) -> Iterator[str]:
    if isinstance(origin, Mapping):
        where = f"{one_line(origin.get('op'), 60)} in {one_line(origin.get('module') or 'no module', 120)}"
        at = f", at {one_line(origin['line'])}" if origin.get("line") else ""
        yield f"first op  {where}: {one_line(origin.get('kind'), 20)} in {one_line(origin.get('dtype'), 20)}{at}"
    if isinstance(module, Mapping):
        what = f"{one_line(module.get('module'), 120)} ({one_line(module.get('kind'), 60)})"
        given = f"its input is {one_line(module.get('input'), 40)}"
        yield f"module    {what} is the first to return what is not finite, in {one_line(module.get('dtype'), 20)}; {given}"


def _tensor(value: Any) -> str:
    return f"{clean(getattr(value, 'dtype', type(value).__name__))} {tuple(getattr(value, 'shape', ()))}"
