"""Measure how quickly the PERF tab responds, idle and while it analyses a large trace.

A real TensorBoard runs on a log directory with a sample trace and the same trace repeated to a given size. The first
figure is the time to the first byte of the sample's report once it is cached. The second is the time until the report
of the large trace is ready. The others are times to the first byte of the sample's report and of the list of runs in
the meantime.

    python -m benchmarks.reading.tensorboard_tab /path/to/trace.json.gz --size-mb 200

Prints a table and writes it to ``benchmarks/results/tensorboard_tab.md``.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.comparing.replicate import replicate
from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.processes import load_average
from lightning_perf.machine.environment import cpu_name

METHOD = 1
"""Version of the method: figures of different versions are not comparable."""

ROUNDS = 50
RESULTS = Path(__file__).parents[1] / "results" / "tensorboard_tab.md"


def first_byte(address: str) -> tuple[int, float]:
    """Status, and milliseconds from asking to the first byte of the body."""
    begin = time.perf_counter()
    with urllib.request.urlopen(address, timeout=60) as response:
        response.read(1)
        took_ms = (time.perf_counter() - begin) * 1e3
        response.read()
        return response.status, took_ms


def measure(base: str) -> dict[str, list[float]]:
    """Return all figures in milliseconds, by name."""
    while first_byte(f"{base}/data/report?run=sample")[0] == 202:
        time.sleep(0.1)
    at_rest = [first_byte(f"{base}/data/report?run=sample")[1] for _ in range(ROUNDS)]
    meanwhile: dict[str, list[float]] = {"report": [], "runs": []}
    begin = time.perf_counter()
    while first_byte(f"{base}/data/report?run=large")[0] == 202:
        meanwhile["report"].append(first_byte(f"{base}/data/report?run=sample")[1])
        meanwhile["runs"].append(first_byte(f"{base}/data/runs")[1])
        time.sleep(0.02)
    return {
        "first byte of a kept report": at_rest,
        "large trace, from asking to its report": [(time.perf_counter() - begin) * 1e3],
        "first byte of a kept report meanwhile": meanwhile["report"],
        "first byte of the runs meanwhile": meanwhile["runs"],
    }


def serve_and_measure(trace: Path, size_mb: int) -> tuple[int, dict[str, list[float]]]:
    """Start TensorBoard and measure; returns the size of the large trace in bytes, and the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run in ("sample", "large"):
            (folder / "logs" / run).mkdir(parents=True)
        suffix = ".pt.trace.json.gz" if trace.name.endswith(".gz") else ".pt.trace.json"
        shutil.copyfile(trace, folder / "logs" / "sample" / f"sample{suffix}")
        large = folder / "logs" / "large" / "large.pt.trace.json"
        replicate(trace, large, size_mb * 10**6)
        log = folder / "log"
        command = (sys.executable, "-m", "tensorboard.main", "--logdir", str(folder / "logs"), "--port", "0")
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
        try:
            while (found := re.search(r"at (http://localhost:\d+)/", log.read_text())) is None:
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.1)
            return large.stat().st_size, measure(f"{found[1]}/data/plugin/lightning_perf")
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("trace", type=Path, help="a real trace, .json or .json.gz")
    parser.add_argument("--size-mb", type=int, default=200, help="size of the large one as JSON (default: 200)")
    options = parser.parse_args()
    load = load_average()
    size_bytes, figures = serve_and_measure(options.trace, options.size_mb)
    rows = [
        (what, len(times), f"{statistics.median(times):,.1f}", f"{max(times):,.1f}")
        for what, times in figures.items()
        if times
    ]
    write_page(
        options.results,
        "# The PERF tab's answers\n\n"
        f"Written by `python -m benchmarks.reading.tensorboard_tab`, method {METHOD}. {cpu_name()}, {os.cpu_count()} "
        f"cores, load average {load} at the start. Sample: {options.trace.name}; large: the same repeated to "
        f"{size_bytes / 1e6:.0f} MB.\n\n{markdown_table(('request', 'requests', 'median ms', 'most ms'), rows, 3)}\n",
    )


if __name__ == "__main__":
    main()
