"""Measure programs by others, and check that the measurement changes nothing and that its figures add up.

Each program is a short training in the way that its package's own introduction shows. It runs in fresh processes,
without and with lightning_perf in turn. The table shows for each program:

- whether the trained weights and the final metrics are the same bit for bit
- whether lightning_perf counts the steps right
- the median step with and without it, by a stopwatch of the benchmark's own
- whether the categories of each recorded step add up to the step, and the groups of the account to the fit
- the findings

Packages that do not fit together get virtual environments in ``--environments``, on top of the environment of this
process. The scripts of public repositories run from clones in ``--checkouts``. Each call updates the rows of its
programs in ``benchmarks/results/compatibility.json``, and writes the table from all rows. Run it on a quiet machine::

    python -m benchmarks.compatibility                      # all programs, scripts and loops
    python -m benchmarks.compatibility litgpt anomalib      # some programs
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.compatibility.checkouts import CHECKOUTS_VARIABLE
from benchmarks.compatibility.document import Document
from benchmarks.compatibility.loops import LoopTable, compare_loops
from benchmarks.compatibility.programs import PROGRAMS
from benchmarks.compatibility.rows import ProgramRow, measure_program
from benchmarks.compatibility.scripts import SCRIPTS, ScriptRow, try_script
from benchmarks.options import make_parser

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "compatibility.md"


def main() -> int:
    """Run programs, scripts and loops, and write the tables after each."""
    parser = make_parser(__doc__, RESULTS)
    names = [*PROGRAMS, *SCRIPTS, "loops"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)} (default: all)")
    folder = ROOT / "build" / "compatibility"
    parser.add_argument("--environments", type=Path, default=folder / "environments", help="default: %(default)s")
    parser.add_argument("--checkouts", type=Path, default=folder / "checkouts", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="trainings with and without (default: %(default)s each)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"unknown name {min(unknown)!r}; choose from {', '.join(names)}")
    os.environ[CHECKOUTS_VARIABLE] = str(options.checkouts.absolute())
    environments = options.environments.absolute()
    for name in options.names or names:
        row: ProgramRow | ScriptRow | LoopTable
        if name in PROGRAMS:
            row = measure_program(name, environments, options.rounds)
        elif name in SCRIPTS:
            row = try_script(name, environments)
        else:
            row = compare_loops(environments, options.rounds)
        print(name, row, flush=True)
        Document.add(options.results, name, row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
