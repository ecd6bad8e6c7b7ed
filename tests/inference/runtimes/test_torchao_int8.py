"""What becomes of torchao's program in the process that deploys it; what it decides is in `test_registry`."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from lightning_perf.inference.runtimes.torchao_int8 import Int8Pt2e
from tests.inference.runtimes.support import CPU, pictures, residual_network, subject_of

LOADED = """
import sys, torch
from pathlib import Path
from torch._dynamo.utils import counters
from lightning_perf.inference.runtimes.torchao_int8 import Int8Pt2e

torch.set_num_threads(1)
call = Int8Pt2e().load(Path(sys.argv[1]), torch.device("cpu"), 1)
call(torch.rand(2, *map(int, sys.argv[2:])))
print(counters["inductor"]["qconv_weight_prepack_matcher_count"])
"""


@pytest.mark.slow
def test_a_process_that_only_loads_it_computes_in_int8(tmp_path):
    runtime = Int8Pt2e()
    if reason := runtime.missing(CPU):
        pytest.skip(reason)
    module, inputs = residual_network(), pictures(5)
    runtime.build(subject_of(module, inputs, pictures(32, seed=5)), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", LOADED, tmp_path, *map(str, inputs.shape[1:])],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    convolutions = sum(isinstance(part, nn.Conv2d) for part in module.modules())
    assert convolutions > 0
    assert int(done.stdout) == convolutions
