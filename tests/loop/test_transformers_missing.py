"""`PerfTrainerCallback` without transformers."""

from __future__ import annotations

import subprocess
import sys

from lightning_perf.project import install_command
from tests.support.absent_packages import without


def test_the_error_says_what_to_install() -> None:
    code = without({"transformers"}, "from lightning_perf import PerfTrainerCallback; PerfTrainerCallback()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode
    assert install_command("transformers") in done.stderr
