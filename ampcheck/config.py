"""Settings of one session: the command line over pytest's ini over defaults. No torch here."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ampcheck.errors import UsageError

if TYPE_CHECKING:
    import pytest

    from ampcheck.contract import Options

__all__ = ["Settings", "add_options", "merge", "plain", "settings_of", "wanted"]

#: 16-bit dtypes that a contract can be judged in, under every name that is understood.
DTYPES = {"float16": "float16", "fp16": "float16", "half": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16"}

#: Options that exist on the command line and in the ini alike: name, metavar, help.
SHARED = (
    ("select", "IDS", "report these checks only: ids or prefixes (AMP1, AMP102), separated by commas; may be repeated"),
    ("ignore", "IDS", "leave these checks out: ids or prefixes; may be repeated"),
    ("strict", "IDS", "count the warnings of these checks as errors: ids, prefixes or 'all'; may be repeated"),
    ("xfail", "ID:REASON", "a finding that is known: it does not fail, and its absence does; may be repeated"),
    ("device", "TYPES", "device types to judge on (cpu, cuda); narrows what a contract declares"),
    ("dtype", "TYPES", "16-bit dtypes to judge parity in (float16, bfloat16); narrows what a contract declares"),
    ("timeout", "SECONDS", "how long one scenario of one contract may take (default 300)"),
    ("budget", "SECONDS", "how long one contract may take; the cheapest checks go first, the rest are not run"),
    ("require", "judged", "a contract of which nothing could be judged is an error"),
    ("json", "PATH", "write the report as JSON"),
    ("html", "PATH", "write the report as one HTML page"),
    ("markdown", "PATH", "write a summary in Markdown; $GITHUB_STEP_SUMMARY gets one by itself"),
    ("sarif", "PATH", "write the findings as SARIF, for code scanning"),
    (
        "annotations",
        "WHEN",
        "mark findings at their lines in pull requests on GitHub: auto (in its Actions; the default), on, off",
    ),
    ("evidence", "DIR", "where a contract whose numbers go wrong leaves a bundle that `ampcheck replay` runs again"),
    (
        "evidence-batch",
        "SIZE",
        "how much of the batch may go into a bundle, such as 16MiB (512MiB at most); without it no data of the training does",
    ),
    ("baseline", "PATH", "the file that a run is compared with (ampcheck-baseline.json at the rootdir, where there is one)"),
    ("accept", "ID:REASON", "a change since the baseline that is meant: a check's id, or a kind of change; may be repeated"),
)
#: Options that only a command line has: name, metavar ("" for a switch), help.
ASKED = (
    ("update-baseline", "", "write what the contracts do now to the baseline; nothing is compared"),
    ("against", "REV", "measure that commit first, in a worktree of its own on this machine, and compare with it"),
)
#: Those that say where a report goes.
REPORTS = ("json", "html", "markdown", "sarif")
Annotations = Literal["auto", "on", "off"]
REPEATED = ("select", "ignore", "strict", "xfail", "device", "dtype", "accept")
REASONED = ("xfail", "accept")


#: Bytes of a batch that a bundle may hold at most.
MOST_EVIDENCE = 512 << 20
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*((?P<unit>[kmg])i?)?b?")


def _key(name: str) -> str:
    """The name of an option as a key of the ini, and of pytest's options."""
    return f"ampcheck_{name.replace('-', '_')}"


@dataclass(frozen=True)
class Settings:
    """What the session asks for; a contract's own `Options` are added to it.

    Args:
        devices, dtypes, select, ignore, xfail, strict: as in `ampcheck.contract.Options`, for every contract.
        timeout: seconds that one scenario of one contract may take.
        budget: seconds for one contract; the cheapest families go first, the rest are not run. `None` is no limit.
        require: "judged" makes a contract of which nothing could be judged an error.
        json, html, markdown, sarif: where that report goes.
        evidence: directory of the evidence bundles; evidence_batch: bytes of the batch that one may hold, `None` is none.
        baseline: the file to compare with or to write; update_baseline: which of the two; against: a revision to compare with.
        accept: changes that are meant: id or kind -> why.
        annotations: whether workflow commands for GitHub are printed; "auto" where its Actions run us.
    """

    devices: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    xfail: Mapping[str, str] = field(default_factory=dict)
    strict: bool | tuple[str, ...] = ()
    timeout: float = 300.0
    budget: float | None = None
    require: Literal["judged"] | None = None
    json: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    sarif: Path | None = None
    annotations: Annotations = "auto"
    evidence: Path | None = None
    evidence_batch: int | None = None
    baseline: Path | None = None
    update_baseline: bool = False
    against: str | None = None
    accept: Mapping[str, str] = field(default_factory=dict)


def add_options(parser: pytest.Parser) -> None:
    """Declare the options; the same names with `ampcheck_` are keys of the ini."""
    group = parser.getgroup("ampcheck", "mixed-precision contracts (ampcheck)")
    group.addoption("--ampcheck", action="store_true", help="judge the functions marked with @ampcheck.contract")
    group.addoption("--ampcheck-only", action="store_true", help="leave ordinary tests out; implies --ampcheck")
    group.addoption(
        "--ampcheck-reference",
        action="store_true",
        help="judge the built-in contracts, which check the installed torch; implies --ampcheck, "
        "and collects nothing else unless paths are given",
    )
    for name, metavar, meaning in SHARED:
        action = "append" if name in REPEATED else "store"
        group.addoption(f"--ampcheck-{name}", action=action, default=None, metavar=metavar, help=meaning)
        kind: Any = "linelist" if name in REASONED else "args" if name in REPEATED else "string"
        once = meaning.removesuffix("; may be repeated")
        parser.addini(_key(name), f"{once} (with --ampcheck)", type=kind, default=None)
    for name, metavar, meaning in ASKED:
        how: dict[str, Any] = {"metavar": metavar, "default": None} if metavar else {"action": "store_true", "default": None}
        group.addoption(f"--ampcheck-{name}", help=meaning, **how)
    parser.addini("ampcheck_modules", "importable modules that hold contracts (with --ampcheck)", type="args", default=[])


def wanted(config: pytest.Config) -> bool:
    """Whether this session judges contracts.

    Raises:
        UsageError: if an option on the command line does nothing because `--ampcheck` is missing; a gate that silently
            judges nothing would look green.
    """
    if any(config.getoption(name) for name in ("ampcheck", "ampcheck_only", "ampcheck_reference")):
        return True
    for name, _, _ in (*SHARED, *ASKED):
        if config.getoption(_key(name)) is not None:
            raise UsageError(f"--ampcheck-{name} does nothing without --ampcheck; add --ampcheck")
    return False


def settings_of(config: pytest.Config) -> Settings:
    """Read and check the settings of a session.

    Raises:
        UsageError: for an unknown id, a dtype that is not one of 16 bits, a number that is none, an xfail without reason.
    """
    asked = {name: _Asked.of(config, name) for name, _, _ in SHARED}
    require = asked["require"].text()
    if require not in (None, "judged"):
        raise UsageError(f"{asked['require'].where}: {require!r} is not 'judged', the only requirement there is")
    annotations = asked["annotations"].text() or "auto"
    if annotations not in ("auto", "on", "off"):
        raise UsageError(f"{asked['annotations'].where}: {annotations!r} is not one of auto, on, off")
    timeout = asked["timeout"].seconds()
    settings = Settings(
        devices=asked["device"].names(),
        dtypes=asked["dtype"].names(),
        select=asked["select"].names(),
        ignore=asked["ignore"].names() or (),
        xfail=asked["xfail"].reasons(),
        strict=_strict(asked["strict"].names() or ()),
        timeout=300.0 if timeout is None else timeout,
        budget=asked["budget"].seconds(),
        require="judged" if require else None,
        annotations=annotations,  # type: ignore[arg-type]
        evidence=asked["evidence"].path(config.invocation_params.dir),
        evidence_batch=asked["evidence-batch"].bytes(),
        baseline=asked["baseline"].path(
            config.rootpath if config.getoption("ampcheck_baseline") is None else config.invocation_params.dir
        ),
        update_baseline=bool(config.getoption("ampcheck_update_baseline")),
        against=config.getoption("ampcheck_against"),
        accept=asked["accept"].reasons(),
        **{name: asked[name].path(config.invocation_params.dir) for name in REPORTS},
    )
    if settings.evidence_batch is not None and settings.evidence is None:
        raise UsageError(f"{asked['evidence-batch'].where} does nothing without --ampcheck-evidence DIR; add it")
    reports = [path for name in REPORTS if (path := getattr(settings, name)) is not None]
    if len(set(reports)) < len(reports):
        raise UsageError(f"two reports go to the same file: {', '.join(map(str, reports))}")
    for name in ("select", "ignore", "xfail", "strict", "dtypes"):
        where = asked[name.removesuffix("s") if name == "dtypes" else name].where
        _canonical(name, getattr(settings, name), where)
    return settings


def merge(options: Options, settings: Settings) -> Options:
    """The options of a contract under the settings of the session.

    Devices, dtypes and selections narrow each other where both declare them; what is ignored, expected to fail or
    strict adds up, the contract's reason before the session's; the contract's timeout goes before the session's.

    Args:
        options: what the contract declares.
        settings: what the session asks for.

    Returns:
        Options with full ids in place of prefixes, dtypes under their torch names, and a timeout in seconds.

    Raises:
        UsageError: for an id or dtype that does not exist, with the nearest one.
    """
    from ampcheck.contract import Options

    def both(name: str) -> tuple[Any, Any]:
        own, asked = getattr(options, name), getattr(settings, name)
        return _canonical(name, own, f"@ampcheck.contract({name}=)"), _canonical(name, asked, f"ampcheck_{name}")

    strict, strict_asked = both("strict")
    xfail, xfail_asked = both("xfail")
    return Options(
        devices=_narrow(options.devices, settings.devices),
        dtypes=_narrow(*both("dtypes")),
        select=_narrow(*both("select")),
        ignore=tuple(dict.fromkeys([*both("ignore")[0], *both("ignore")[1]])),
        xfail={**xfail_asked, **xfail},
        strict=True if strict is True or strict_asked is True else tuple(dict.fromkeys([*strict, *strict_asked])),
        timeout=settings.timeout if options.timeout is None else options.timeout,
    )


def plain(options: Options) -> dict[str, Any]:
    """What decides how a contract is judged, as JSON data: the merged options of `merge`, less devices and timeout."""
    listed = {name: getattr(options, name) for name in ("ignore", "select", "dtypes", "strict")}
    found: dict[str, Any] = {k: sorted(v) if isinstance(v, tuple) else v for k, v in listed.items()}
    return {**found, "xfail": dict(sorted(options.xfail.items()))}


def _narrow(own: tuple[str, ...] | None, asked: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if own is None or asked is None:
        return asked if own is None else own
    return tuple(name for name in own if name in asked)


def _strict(names: Iterable[str]) -> bool | tuple[str, ...]:
    names = tuple(names)
    return True if "all" in [name.lower() for name in names] else names


def _canonical(name: str, value: Any, where: str) -> Any:
    """The value of an option with its ids and dtypes written out; `where` is the setting it comes from."""
    from ampcheck import registry

    if value is None or isinstance(value, bool):
        return value
    if name == "dtypes":
        return tuple(dict.fromkeys(_dtype(dtype, where) for dtype in value))
    if name == "xfail":
        for id in value:
            if len(registry.expand([id], where)) > 1 or len(id) != len("AMP101"):
                raise UsageError(f"{where}: {id!r} names several checks; an expected failure names one, such as AMP101")
        return {id.upper(): str(reason) for id, reason in value.items()}
    return tuple(registry.expand(value, where))


def _dtype(name: str, where: str) -> str:
    try:
        return DTYPES[name.removeprefix("torch.").lower()]
    except KeyError:
        near = difflib.get_close_matches(name.lower(), DTYPES, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{where}: {name!r} is not a 16-bit float dtype (float16, bfloat16){hint}") from None


@dataclass(frozen=True)
class _Asked:
    """The value of one option as the user wrote it, and where."""

    where: str
    value: Any

    @classmethod
    def of(cls, config: pytest.Config, name: str) -> _Asked:
        given = config.getoption(_key(name))
        if given is not None:
            return cls(f"--ampcheck-{name}", given)
        return cls(_key(name), config.getini(_key(name)) or None)

    def text(self) -> str | None:
        return None if self.value is None else str(self.value).strip()

    def path(self, folder: Path) -> Path | None:
        text = self.text()
        return None if text is None else folder / text

    def names(self) -> tuple[str, ...] | None:
        if self.value is None:
            return None
        names = [name.strip() for given in self.value for name in given.split(",")]
        return tuple(name for name in names if name)

    def seconds(self) -> float | None:
        text = self.text()
        if text is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not seconds > 0:
            raise UsageError(f"{self.where}: {text!r} is not a number of seconds greater than 0")
        return seconds

    def bytes(self) -> int | None:
        text = self.text()
        if text is None:
            return None
        found = _SIZE.fullmatch(text.lower())
        size = int(float(found["number"]) * 1024 ** " kmg".index(found["unit"] or " ")) if found else 0
        if not 0 < size <= MOST_EVIDENCE:
            raise UsageError(f"{self.where}: {text!r} is not a size from 1 to {MOST_EVIDENCE} bytes, such as 16MiB")
        return size

    def reasons(self) -> dict[str, str]:
        reasons: dict[str, str] = {}
        for entry in self.value or ():
            id, _, reason = (part.strip() for part in entry.partition(":"))
            if not reason:
                raise UsageError(f"{self.where}: {entry!r} has no reason; write ID:reason, such as AMP303:known, see #12")
            reasons[id] = reason
        return reasons
