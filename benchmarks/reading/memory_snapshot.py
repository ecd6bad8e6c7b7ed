"""Processor time and memory of ``lightning-perf analyze`` on a large memory snapshot.

The snapshot has random allocations and frees, and stacks of 40 frames from 8,000 distinct ones, as a recording with
``stacks="all"`` has. Each event has a list of its own, and the frames are shared, as torch writes them.

Run as ``python -m benchmarks.reading.memory_snapshot``: prints a Markdown table and writes it to
``benchmarks/results/memory_snapshot.md``. With ``--events N`` it measures one size and writes nothing.
"""

from __future__ import annotations

import pickle
import platform
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.options import make_parser, markdown_table, write_page

RESULTS = Path(__file__).parents[1] / "results" / "memory_snapshot.md"
SIZES = (10_000, 100_000, 1_000_000)
FRAMES, STACKS, DEPTH = 3_000, 8_000, 40
MOST_ALIVE = 6_000
BLOCK_BYTES = 2 << 20


def make_snapshot(events: int, seed: int = 1) -> dict[str, Any]:
    """Return the values of a snapshot with at least as many events."""
    drawn = random.Random(seed)
    frames = [
        {"name": f"call_{i}", "filename": f"/home/ada/net_{i % 40}.py" if i % 3 else "??", "line": i if i % 3 else 0}
        for i in range(FRAMES)
    ]
    stacks = [drawn.choices(frames, k=DEPTH) for _ in range(STACKS)]
    trace: list[dict[str, Any]] = []
    live: list[tuple[int, int]] = []
    free: list[int] = []
    first = top = 0x7F00_0000_0000
    time_us = 1_700_000_000_000_000

    def record(action: str, address: int, size: int) -> None:
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us}
        trace.append({**event, "frames": list(drawn.choice(stacks))})

    while len(trace) < events:
        time_us += drawn.randrange(1, 40)
        if len(live) < MOST_ALIVE // 2 or (len(live) < MOST_ALIVE and drawn.random() < 0.5):
            address, top = (free.pop(), top) if free else (top, top + BLOCK_BYTES)
            live.append((address, drawn.randrange(1, BLOCK_BYTES)))
            record("alloc", *live[-1])
        else:
            address, size = live.pop(drawn.randrange(len(live)))
            free.append(address)
            record("free_requested", address, size)
            record("free_completed", address, size)
    sizes = dict(live)
    blocks: list[dict[str, Any]] = [
        {
            "address": address,
            "size": BLOCK_BYTES,
            "requested_size": sizes.get(address, 0),
            "state": "active_allocated" if address in sizes else "inactive",
            "frames": [],
        }
        for address in range(first, top, BLOCK_BYTES)
    ]
    segment = {"device": 0, "address": first, "total_size": top - first, "stream": 0, "segment_type": "large"}
    return {"segments": [{**segment, "blocks": blocks}], "device_traces": [trace], "allocator_settings": {}}


def measure(events: int, folder: Path) -> tuple[str, ...]:
    """Return a row of the table: events, size of the file, processor time, and the largest memory of a process."""
    path = folder / f"{events}.pickle"
    with path.open("wb") as file:
        pickle.dump(make_snapshot(events), file)
    script = "import sys, lightning_perf.cli as cli; sys.exit(cli.main(sys.argv[1:]))"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", script, "analyze", str(path), "--json"], check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak_bytes = after.ru_maxrss * 1024  # of the largest child until now
    size_mb = path.stat().st_size / 1e6
    path.unlink()
    return f"{events:,}", f"{size_mb:.0f} MB", f"{seconds:.1f} s", f"{peak_bytes / 1e9:.2f} GB"


def main() -> None:
    """Measure all sizes, the smallest first."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--events", type=int, help="measure one size and write nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(events, Path(folder)) for events in ([options.events] if options.events else SIZES)]
    table = markdown_table(("events", "file", "processor time", "memory"), rows, 4)
    if options.events is not None:
        print(table)
        return
    machine = f"{platform.machine()}, CPython {platform.python_version()}"
    write_page(
        options.results,
        "# Reading memory snapshots\n\n`lightning-perf analyze snapshot.pickle --json` as a process of its own, on "
        f"{machine}. Stacks have {DEPTH} frames. *Processor time* is that of both processes. *Memory* is the "
        f"largest resident memory of one process.\n\n{table}\n\n"
        "Made by `python -m benchmarks.reading.memory_snapshot`.\n",
    )


if __name__ == "__main__":
    main()
