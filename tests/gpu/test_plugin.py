"""The plugin where there is a GPU."""

from __future__ import annotations

import json

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
