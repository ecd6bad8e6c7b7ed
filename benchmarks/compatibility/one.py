"""Train one program in this process, and print its outcome as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path

from benchmarks.compatibility.programs import PROGRAMS
from benchmarks.compatibility.programs.same_network import LOOPS
from benchmarks.compatibility.session import Outcome, measure

if __name__ == "__main__":
    name, how = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome = measure(
                LOOPS[name] if name in LOOPS else PROGRAMS[name].train, Path(folder), measured=how == "with"
            )
        except Exception:
            traceback.print_exc()
            outcome = Outcome(error=traceback.format_exc().strip().splitlines()[-1])
    print(json.dumps({"outcome": asdict(outcome)}), flush=True)
