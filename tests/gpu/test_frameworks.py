"""accelerate, Lightning and the Hugging Face Trainer in fp16 on a GPU: silent as they are, named and located with a mistake."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import ampcheck

HERE = Path(__file__).parent
PACKAGES = {"accelerate": "accelerate", "lightning": "lightning", "transformers": "transformers"}


def judged(name: str, mistake: str = "") -> dict[str, Any]:
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    spec = importlib.util.spec_from_file_location("frameworks", HERE / "frameworks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loop = module.LOOPS[name]
    report = ampcheck.check(lambda: loop(mistake), device="cuda", name=f"{name} {mistake}".strip())
    return {
        "verdicts": {v.check: v for v in report.verdicts},
        "errors": [f for f in report.findings if f.level == "error"],
        "findings": report.findings,
    }


@pytest.mark.parametrize("name", PACKAGES)
def test_as_it_is(name: str) -> None:
    found = judged(name)
    assert found["errors"] == []
    assert found["verdicts"]["AMP101"].outcome == "passed", found["verdicts"]["AMP101"].reason


@pytest.mark.parametrize("name", PACKAGES)
def test_clip_of_scaled_gradients(name: str) -> None:
    found = judged(name, "clip")
    assert [f.id for f in found["errors"]][:1] == ["AMP102"]
    assert found["errors"][0].location is not None and found["errors"][0].location.file.endswith("frameworks.py")


@pytest.mark.parametrize("name", PACKAGES)
def test_direct_optimizer_step(name: str) -> None:
    found = judged(name, "step")
    assert [f.id for f in found["errors"]][:1] == ["AMP103"]
    assert found["errors"][0].location is not None and found["errors"][0].location.file.endswith("frameworks.py")
