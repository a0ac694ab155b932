"""The plugin where there is a GPU."""

from __future__ import annotations

import json
import sys

#: What CUDA makes of a fork tells whether it was started before.
SPY = """
import atexit, json, os, torch

def tell():
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device="cuda").sum().item()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open("cuda.json", "w") as file:
        json.dump({"initialized": torch.cuda.is_initialized(), "child": status}, file)

atexit.register(tell)
"""


def test_collection_chooses_the_gpu_and_does_not_start_it(pytester):
    pytester.makeconftest(SPY)
    pytester.makepyfile("import ampcheck\n\n@ampcheck.contract\ndef resnet(amp_device):\n    pass\n")
    result = pytester.runpytest_subprocess("-p", "ampcheck.plugin", "--ampcheck", "--collect-only", "-q", "-p", "no:xdist")
    assert any("resnet[cuda-AMP102-" in line for line in result.outlines)
    assert json.loads((pytester.path / "cuda.json").read_text()) == {"initialized": False, "child": 0}


STEPS = """
import torch
import ampcheck

def build(device, factor):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)).to(device)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler(device)
    x, y = torch.randn(16, 8, device=device), torch.randint(0, 4, (16,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model[2]((factor * model[0](x)) / factor)
        loss = torch.nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step

@ampcheck.contract
def right(amp_device):
    return build(amp_device, 1.0)

@ampcheck.contract
def overflowing(amp_device):
    return build(amp_device, 2.0**18)
"""


def test_the_gate_the_page_and_the_evidence(pytester):
    pytester.makepyfile(test_amp=STEPS)
    base = ["-p", "ampcheck.plugin", "-p", "no:xdist", "-p", "no:randomly", "--ampcheck"]
    assert pytester.runpytest_subprocess(*base, "--ampcheck-update-baseline", "-k", "right").ret == 0
    again = pytester.runpytest_subprocess(
        *base, "--ampcheck-html=page.html", "--ampcheck-json=report.json", "--ampcheck-evidence=evidence"
    )
    assert again.ret == 1
    report = json.loads((pytester.path / "report.json").read_text())
    assert {(f["id"], f["contract"].rpartition("::")[2]) for f in report["findings"] if f["level"] == "error"} >= {
        ("AMP310", "overflowing")
    }
    assert not [f for f in report["findings"] if f["level"] == "error" and f["contract"].endswith("right")]
    assert "<html" in (pytester.path / "page.html").read_text()
    (bundle,) = (pytester.path / "evidence").glob("*overflowing*.pt")
    shown = pytester.run(sys.executable, "-m", "ampcheck", "replay", bundle)
    assert shown.ret == 1, shown.stdout.str()
