"""Damage real traces at random, read and analyse them: each case must end in sound results or a `TraceError`.

    python -m benchmarks.reading.fuzz /path/to/corpus --cases 5000

The corpus is a folder with ``traces/``. The script prints how many cases ended in which way. For any other ending it
prints the file and the seed that reproduce it, and exits with 1.
"""

from __future__ import annotations

import collections
import gzip
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks.options import make_parser
from lightning_perf import TraceError, read_trace
from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from tests.support.consistency import assert_consistent
from tests.support.mutations import mutated

_LARGEST_SOURCE_BYTES = 4 << 20


def sources(corpus: Path) -> dict[str, bytes]:
    """The texts of the corpus's traces of up to 4 MB."""
    found = {}
    for path in sorted((corpus / "traces").rglob("*.json*")):
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        if len(text) < _LARGEST_SOURCE_BYTES and b"traceEvents" in text[:5_000_000] and path.name != "reference.json":
            found[str(path.relative_to(corpus))] = text
    return found


def ending(data: bytes, folder: Path) -> str:
    """How reading and analysing a damaged file ends."""
    path = folder / "case.json"
    path.write_bytes(data)
    try:
        trace = read_trace(path)
    except TraceError:
        return "TraceError"
    assert_consistent(trace)
    assert_sums_to_wall_time(analyze_rank(trace))
    problems = trace.problems
    flagged = problems.truncated or problems.repaired_events or problems.dropped_events or problems.bad_durations
    return "results, with problems stated" if flagged else "results, sound"


def assert_sums_to_wall_time(analysis: RankAnalysis) -> None:
    """In each step the categories, and on average the phases, sum to the wall time, to the nanosecond."""
    steps = analysis.breakdown.steps
    categories = [row.per_step_ns for row in analysis.breakdown.categories if row.parent is None and row.per_step_ns]
    for number, step in enumerate(steps):
        assert sum(row[number] for row in categories) == step.wall_ns
    assert abs(sum(row.mean_ns for row in analysis.phases.phases) - (analysis.breakdown.wall.mean_ns or 0.0)) < 1


def main() -> int:
    """Run the cases."""
    parser = make_parser(__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow-s", type=float, default=10.0, help="a case that takes longer counts as a hang")
    arguments = parser.parse_args()
    texts = sources(arguments.corpus)
    rng = random.Random(arguments.seed)
    endings: collections.Counter[str] = collections.Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for case in range(arguments.cases):
            name, seed = rng.choice(sorted(texts)), arguments.seed * 1_000_003 + case
            data = mutated(texts[name], seed)
            if case % 8 == 7:
                packed = bytearray(gzip.compress(data, 1))
                packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
                data = bytes(packed)
            begin = time.process_time()
            try:
                end = ending(data, Path(folder))
            except Exception as fault:
                end = f"FAULT {type(fault).__name__}"
                print(f"{name} seed {seed}:")
                traceback.print_exc()
            took = time.process_time() - begin
            slowest = max(slowest, took)
            endings["FAULT hang" if took > arguments.slow_s else end] += 1
    for end, count in endings.most_common():
        print(f"{count:7,d}  {end}")
    print(f"{arguments.cases:7,d}  cases of {len(texts)} files, the slowest {slowest:.2f} s of CPU time")
    return int(any(end.startswith("FAULT") for end in endings))


if __name__ == "__main__":
    sys.exit(main())
