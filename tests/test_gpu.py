"""Where the machine has a CUDA GPU, what needs one is tried on it; all other tests are kept away from it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(900)
def test_what_needs_a_gpu_works_on_one(gpu_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/on_gpu.py"]
    done = subprocess.run(command, cwd=ROOT, env=gpu_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def test_no_other_test_sees_a_gpu() -> None:
    import torch

    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()
