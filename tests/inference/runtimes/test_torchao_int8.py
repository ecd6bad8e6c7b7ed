"""What becomes of torchao's program in the process that deploys it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lightning_perf.inference.runtimes.torchao_int8 import Int8Pt2e
from tests.inference.runtimes.support import CPU, pictures, plain_network, subject_of

LOADED = """
import sys, torch
from pathlib import Path
from torch._dynamo.utils import counters
from lightning_perf.inference.runtimes.torchao_int8 import Int8Pt2e

torch.set_num_threads(1)
call = Int8Pt2e().load(Path(sys.argv[1]), torch.device("cpu"), 1)
outputs = call(torch.load(sys.argv[1] + "/inputs"))
torch.save(outputs, sys.argv[1] + "/outputs")
print(counters["inductor"]["qconv_weight_prepack_matcher_count"])
"""


@pytest.mark.slow
def test_a_process_that_only_loads_it_computes_in_int8(tmp_path):
    runtime = Int8Pt2e()
    if reason := runtime.missing(CPU):
        pytest.skip(reason)
    module, inputs = plain_network(), pictures(5)
    runtime.build(subject_of(module, inputs, pictures(32, seed=5)), tmp_path)
    assert callable(runtime.load(tmp_path, CPU, 1))  # compiles at its first call only
    torch.save(inputs, tmp_path / "inputs")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, tmp_path],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(isinstance(part, nn.Conv2d) for part in module.modules()) == 1
    with torch.no_grad():
        wanted = module(inputs)
    difference = (torch.load(tmp_path / "outputs") - wanted).abs().max() / wanted.abs().max()
    assert 0 < difference < 0.2
