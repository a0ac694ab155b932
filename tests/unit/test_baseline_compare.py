"""What has changed between two fingerprints, in lines that a reviewer reads, and what of it fails."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.baseline.changes import Change
from ampcheck.baseline.compare import compare, reevaluated
from ampcheck.baseline.fingerprint import bits, coarse, fingerprint
from ampcheck.baseline.modules import pairs
from ampcheck.findings import Finding, Verdict

F16, F32 = "float16", "float32"
BASE: dict[str, Any] = {
    "environment": {"card": "", "device": "cpu", "python": "3.11", "tf32": "off", "torch": "2.13"},
    "events": ["scale, backward, unscale, clip, scaler_step, update"],
    "findings": {},
    "headroom": {"as-written gradient": 0.1},
    "judged": {"1": "AMP101 AMP102", "2": "AMP201", "3": "AMP301"},
    "modules": {
        "encoder.norm": {"kind": "LayerNorm", "parameters": F32, "returns": F16, "norm": F16},
        "fc1": {"kind": "Linear", "parameters": F32, "returns": F16, "matmul": F16},
        "fc2": {"kind": "Linear", "parameters": F32, "returns": F16, "matmul": F16},
        "head": {"kind": "Linear", "parameters": F32, "returns": F32, "matmul": f"{F32} island"},
    },
    "ops": {"matmul forward 16-bit share": 0.75, "matmul forward float16": 2},
    "settings": {"ignore": [], "select": None, "dtypes": None, "strict": [], "xfail": {}},
    "state": {"AdamW": {"bytes": 8.0, "dtype": F32}, "AdamW exp_avg": {"bytes": 4.0, "dtype": F32}},
}


def changed(**facts: Any) -> dict[str, Any]:
    """The base with some of its facts updated one level deep."""
    found = copy.deepcopy(BASE)
    for key, value in facts.items():
        found[key] = {**found[key], **value} if isinstance(found[key], dict) else value
    return found


def lines(now: dict[str, Any], base: dict[str, Any] = BASE, **accepted: str) -> list[tuple[str, str]]:
    return [(c.verdict, c.text) for c in compare(base, now, accepted)]


def module(name: str, **facts: str) -> dict[str, Any]:
    return {name: {**BASE["modules"][name], **facts}}


def test_nothing_has_changed() -> None:
    assert compare(BASE, copy.deepcopy(BASE)) == []


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (changed(modules=module("encoder.norm", parameters="bfloat16")), ("worse", "encoder.norm: float32 -> bfloat16")),
        (changed(modules={**module("fc1", matmul=F32), **module("fc2", matmul=F32)}), ("info", "2 matmuls left 16 bits (float16 -> float32): fc1, fc2")),
        (changed(modules=module("head", matmul=F16)), ("worse", "1 matmul entered 16 bits, an island of full precision before (float32 -> float16): head")),
        (changed(modules=module("fc1", matmul="bfloat16")), ("info", "1 matmul changed (float16 -> bfloat16): fc1")),
        (changed(modules=module("fc1", kind="LoRA")), ("info", "fc1: Linear -> LoRA")),
        (changed(modules=module("encoder.norm", returns=F32)), ("info", "what is returned: float16 -> float32: encoder.norm")),
        (changed(events=["scale, backward, clip, unscale, scaler_step, update"]), ("info", "unscale_ moved after clip")),
        (changed(events=["scale, backward, unscale, scaler_step, update"]), ("info", "clip is gone (it followed unscale_)")),
        (changed(events=[*BASE["events"], "scale, backward"]), ("info", "an iteration that is new: scale, backward")),
        (
            changed(state={"AdamW": {"bytes": 4.0, "dtype": F32}, "AdamW exp_avg": {"bytes": 2.0, "dtype": "bfloat16"}}),
            ("worse", "optimizer state of AdamW 8 -> 4 bytes a parameter (exp_avg: float32 -> bfloat16)"),
        ),
        (changed(headroom={"as-written gradient": 1.0}), ("worse", "parity headroom of the as-written gradient 0.1 -> 1 of what rounding allows")),
        (changed(headroom={"as-written gradient": 0.5}), ("info", "parity headroom of the as-written gradient 0.1 -> 0.5 of what rounding allows")),
        (changed(findings={"AMP303": "failed"}), ("new", "AMP303 is new")),
        (changed(findings={"AMP305": "warned"}), ("info", "AMP305 is new, a warning")),
        (changed(judged={"3": ""}), ("info", "not judged any more: AMP301")),
        (changed(judged={"1": "AMP111", "2": ""}), ("worse", "nothing of the order of calls and of the scaler could be judged any more")),
        (changed(settings={"ignore": ["AMP303"]}), ("worse", "loosened: AMP303 is now ignored")),
        (changed(settings={"xfail": {"AMP303": "later"}}), ("worse", "loosened: AMP303 is now expected to fail (later)")),
        (changed(environment={"python": "3.12"}), ("info", "python 3.11 -> 3.12")),
    ],
)  # fmt: skip
def test_each_change_is_one_line(now: dict[str, Any], expected: tuple[str, str]) -> None:
    assert lines(now) == [expected]


def test_small_moves_of_what_differs_between_machines_are_nothing() -> None:
    assert lines(changed(headroom={"as-written gradient": 0.2})) == []
    assert lines(changed(headroom={"as-written gradient": 0.01})) == []
    assert lines(changed(headroom={"as-written gradient": 1.0}), changed(headroom={"as-written gradient": 0.5})) == []


def test_an_order_fails_beside_the_finding_that_it_explains() -> None:
    now = changed(events=["scale, backward, clip, unscale, scaler_step, update"], findings={"AMP102": "failed"})
    assert lines(now) == [("worse", "unscale_ moved after clip"), ("new", "AMP102 is new")]


def test_a_rename_changes_nothing_else() -> None:
    rows = {name.replace("encoder", "body").replace("fc", "linear"): row for name, row in BASE["modules"].items()}
    now = {**BASE, "modules": rows}
    assert lines(now) == [("info", "renamed: encoder.norm -> body.norm, fc1 -> linear1, fc2 -> linear2")]


def test_a_renamed_module_is_still_compared() -> None:
    rows = dict(BASE["modules"])
    rows["encoder.layer_norm"] = {**rows.pop("encoder.norm"), "parameters": "bfloat16"}
    assert lines({**BASE, "modules": rows})[0] == ("worse", "encoder.layer_norm (was encoder.norm): float32 -> bfloat16")


def test_a_halved_model_is_one_line() -> None:
    rows = {name: {**row, "parameters": F16} for name, row in BASE["modules"].items()}
    found = [c for c in lines({**BASE, "modules": rows}) if c[0] == "worse"]
    assert found == [("worse", "the parameters of 4 modules: float32 -> float16: encoder.norm, fc1, fc2, head")]


def test_modules_that_come_and_go_are_told() -> None:
    rows = dict(BASE["modules"])
    del rows["encoder.norm"]
    rows["encoder.rms"] = {"kind": "RMSNorm", "parameters": F32, "returns": F16, "norm": F16}
    assert lines({**BASE, "modules": rows}) == [
        ("info", "gone: encoder.norm"),
        ("info", "added: encoder.rms (RMSNorm, float32)"),
    ]


def test_leaving_16_bits_weighs_what_its_check_weighs() -> None:
    now = changed(modules=module("fc1", matmul=F32), settings={"strict": ["AMP601"]})
    assert ("worse", "1 matmul left 16 bits (float16 -> float32): fc1") in lines(now)
    assert lines(changed(modules=module("fc1", matmul=F32), settings={"strict": True}))[0][0] == "worse"


def test_a_mended_finding_asks_for_its_excuse_to_go() -> None:
    base = changed(findings={"AMP201": "xfailed", "AMP303": "failed"}, settings={"xfail": {"AMP201": "known"}})
    now = changed(settings={"xfail": {"AMP201": "known"}}, judged={"3": "AMP301 AMP303"})
    assert lines(now, base) == [("better", "AMP201 is mended: remove its xfail"), ("better", "AMP303 is mended")]


def test_a_warning_that_has_become_an_error_is_worse() -> None:
    now = changed(findings={"AMP108": "failed"})
    assert lines(now, changed(findings={"AMP108": "warned"})) == [("worse", "AMP108 was a warning and is an error now")]


def test_a_finding_that_cannot_be_judged_is_not_mended() -> None:
    base = changed(findings={"AMP303": "failed"})
    assert lines(BASE, base) == [("info", "AMP303 was found before and cannot be judged now")]


def test_another_card_measures_anew_and_settings_still_count() -> None:
    now = changed(
        environment={"card": "H200", "tf32": "cudnn"},
        findings={"AMP303": "failed"},
        modules=module("encoder.norm", parameters="bfloat16"),
        settings={"ignore": ["AMP101"]},
    )
    assert reevaluated(BASE, now) == "card none -> H200, TF32 off -> cudnn"
    assert lines(now) == [
        ("worse", "loosened: AMP101 is now ignored"),
        ("info", "measured anew, for the conditions have changed: card none -> H200, TF32 off -> cudnn"),
        ("info", "AMP303 is new (measured anew)"),
        ("info", "encoder.norm: float32 -> bfloat16 (measured anew)"),
    ]


@pytest.mark.parametrize("word", ["AMP303", "AMP3", "settings"])
def test_what_is_loosened_can_be_acknowledged(word: str) -> None:
    now = changed(settings={"ignore": ["AMP303"]})
    assert lines(now, **{word: "see #12"}) == [("info", "accepted: loosened: AMP303 is now ignored (see #12)")]


def test_an_acknowledgement_covers_what_it_names() -> None:
    now = changed(settings={"strict": ()})
    base = changed(settings={"strict": ["AMP108", "AMP305"]})
    assert lines(now, base, AMP108="x")[0] == ("worse", "loosened: AMP108, AMP305 are not strict any more")
    assert lines(now, base, AMP1="x", settings="y")[0][0] == "info"
    assert lines(changed(modules=module("fc1", parameters=F16)), AMP303="x")[0][0] == "worse"
    assert lines(changed(modules=module("fc1", parameters=F16)), modules="x")[0][0] == "info"


def test_what_a_command_line_narrows_loosens_nothing() -> None:
    base = changed(settings={"dtypes": ["bfloat16", "float16"]}, findings={"AMP502 bfloat16": "failed"}, judged={"5": "AMP502"})
    now = changed(settings={"dtypes": ["float16"]}, judged={"5": "AMP502"})
    found = compare(base, now, {}, ["dtypes"])
    assert [c.text for c in found] == ["AMP502 bfloat16 was found before and cannot be judged now"]


def test_a_step_that_raises_tells_nothing_of_what_comes_later() -> None:
    now = changed(events=[], findings={"AMP111": "failed"})
    assert lines({**now, "state": {}}) == [("new", "AMP111 is new")]


def test_narrower_settings_are_looser() -> None:
    base = changed(settings={"dtypes": ["bfloat16", "float16"], "select": ["AMP101", "AMP102"], "strict": True})
    now = changed(settings={"dtypes": ["bfloat16"], "select": ["AMP101"], "strict": ["AMP108"]})
    assert [text for _, text in lines(now, base)] == [
        "loosened: AMP102 is not selected any more",
        "loosened: float16 is not judged any more",
        "loosened: strict is not strict any more",
    ]
    assert lines(base, now) == []
    assert [text for _, text in lines(BASE, changed(settings={"ignore": ["AMP101"]}))] == [
        "tightened: AMP101 no longer ignored"
    ]


# -- properties -------------------------------------------------------------------------------------------------------

rows = st.fixed_dictionaries(
    {"kind": st.sampled_from(["Linear", "LayerNorm"]), "parameters": st.sampled_from([F16, F32, "bfloat16"])},
    optional={"matmul": st.sampled_from([F16, F32, f"{F32} island", f"{F16}+{F32}"]), "returns": st.sampled_from([F16, F32])},
)
modules = st.dictionaries(st.text("ab.1", min_size=1, max_size=4), rows, max_size=5)
events = st.lists(
    st.permutations(["scale", "backward", "unscale", "clip", "scaler_step"]).map(", ".join), max_size=2, unique=True
)
facts = st.builds(
    lambda m, e, h, f: {**BASE, "modules": m, "events": e, "headroom": {"as-written gradient": h}, "findings": f},
    modules,
    events,
    st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    st.dictionaries(st.sampled_from(["AMP101", "AMP303"]), st.sampled_from(["failed", "warned", "xfailed"])),
)


@given(facts)
def test_the_same_is_no_change(one: dict[str, Any]) -> None:
    assert compare(one, copy.deepcopy(one)) == []


@given(facts, facts)
def test_the_order_of_keys_does_not_matter(base: dict[str, Any], now: dict[str, Any]) -> None:
    def turned(value: Any) -> Any:
        return {k: turned(value[k]) for k in reversed(value)} if isinstance(value, dict) else value

    assert compare(turned(base), turned(now)) == compare(base, now)


@given(facts, facts)
def test_what_was_worse_is_better_the_other_way_round(base: dict[str, Any], now: dict[str, Any]) -> None:
    def parameters(changes: list[Change], verdict: str) -> int:
        return sum(c.kind == "modules" and c.verdict == verdict and " -> " in c.text for c in changes)

    there, back = compare(base, now), compare(now, base)
    assert bool(parameters(there, "worse")) == bool(parameters(back, "better"))
    assert all("\n" not in c.text for c in there)


@given(modules, modules)
def test_each_module_is_paired_at_most_once(base: dict[str, Any], now: dict[str, Any]) -> None:
    found, gone, added = pairs(base, now)
    assert sorted([old for old, _ in found] + gone) == sorted(base)
    assert sorted([new for _, new in found] + added) == sorted(now)


@given(st.floats(1e-6, 1e4))
def test_coarse_numbers_do_not_hide_the_size(value: float) -> None:
    shown = coarse(value)
    assert shown == 0.01 or shown == 1000.0 or value <= shown * 1.0001 <= 2.6 * value
    assert coarse(shown) == shown


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", 32),
        ("bfloat16", 16),
        ("float16", 16),
        ("float8_e4m3fn", 8),
        ("float64", 64),
        ("int64", 0),
        ("bool", 0),
        ("", 0),
    ],
)
def test_bits(dtype: str, expected: int) -> None:
    assert bits(dtype) == expected


def test_a_fingerprint_keeps_what_was_found_and_not_what_follows() -> None:
    fault = Finding("AMP102", "clip", "error", "c", "e", "s", "f")
    verdicts = [
        Verdict("c", "AMP102", "clip", "failed", finding=fault),
        Verdict("c", "AMP101", "scale", "failed", follows="AMP102", finding=fault),
        Verdict("c", "AMP502", "gradient", "warned", "float16", finding=fault),
        Verdict("c", "AMP201", "skip", "failed", reason="XPASS(strict)"),
        Verdict("c", "AMP202", "backoff", "inconclusive"),
    ]
    environment = {"torch": "2.13.0+cpu", "python": "3.11.4", "tf32": {"matmul": False, "cudnn": True}}
    found = fingerprint({"device": "cpu", "headroom": {"as-written": {"gradient": 0.123}}}, verdicts, environment)
    assert found["findings"] == {"AMP102": "failed", "AMP502 float16": "warned"}
    assert found["judged"] == {"1": "AMP101 AMP102", "2": "AMP201", "5": "AMP502"}
    assert found["headroom"] == {"as-written gradient": 0.2}
    assert found["environment"] == {"card": "", "device": "cpu", "python": "3.11", "tf32": "off", "torch": "2.13"}
    on_card = fingerprint({"device": "cuda"}, [], {**environment, "card": "H200"})["environment"]
    assert (on_card["card"], on_card["tf32"]) == ("H200", "cudnn")
