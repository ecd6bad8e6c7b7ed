"""Measure how the time to analyse a run grows with its ranks.

    python -m benchmarks.reading.ranks /path/to/corpus --ranks 1 2 4 8 16 32
    python -m benchmarks.reading.ranks /path/to/corpus --ranks 1 64 --size-mb 100 --jobs 1 2 --results many_ranks

The traces are from a real DDP training (`replicate.py` makes one of any size), with one file for each rank. Each rank
starts its steps a little later than the previous one, so that ranks wait for each other. Every measurement is a fresh
process that analyses the whole folder; CPU seconds include its worker processes. By default a folder of N ranks is
analysed by as many processes at once as there are cores. The cache of columns is off. The order of the arms changes
from round to round, and the median of the rounds is reported.

Writes ``benchmarks/results/ranks.json`` and ``.md`` (``--results`` chooses another place).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import random
import re
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.comparing.replicate import replicate
from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.processes import peak_memory_mb, processor_time_s, run_module
from lightning_perf.machine.environment import cpu_name
from lightning_perf.run_files.user_cache import CACHE_VARIABLE, OFF
from lightning_perf.workers.limits import usable_cpus

RESULTS = Path(__file__).parents[1] / "results" / "ranks"
METHOD_VERSION = 2

SOURCE = "hta/nccl_parser_config/nccl_data.b4b6dce.json.gz"
"""ResNet on A100s with NCCL; its collectives carry their parameters."""

LATER_US = 200
"""By how much each rank begins later than the one before."""

_RANK = re.compile(r'("distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*)\d+([^}]*?"world_size"\s*:\s*)\d+')
_TIME = re.compile(r'("ts"\s*:\s*)(\d+)')


def make_run(trace: Path, folder: Path, ranks: int) -> None:
    """Write the traces of a run; existing files are kept.

    Args:
        trace: The trace of one rank, as plain JSON.
        folder: Where to.
        ranks: Ranks of the run.

    Raises:
        SystemExit: The trace does not say which rank it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = trace.read_text()
    if not _RANK.search(text):
        raise SystemExit(f"{trace} does not tell its rank (distributedInfo)")
    for rank in range(ranks):
        target = folder / f"rank{rank}.1700000000000000000.pt.trace.json"
        if target.exists():
            continue
        its = _RANK.sub(rf"\g<1>{rank}\g<2>{ranks}", text, count=1)
        if rank:
            later_us = rank * LATER_US
            its = _TIME.sub(lambda found: f"{found[1]}{int(found[2]) + later_us}", its)  # noqa: B023
        unfinished = target.with_name(target.name + ".part")
        unfinished.write_text(its)
        unfinished.replace(target)


def worker(folder: Path, jobs: int) -> None:
    """Analyse a run in this process and print the figures."""
    from lightning_perf import analyze
    from lightning_perf.report.recordings import analyze_recordings

    begin = time.perf_counter(), processor_time_s()
    report = analyze(folder, executor=functools.partial(analyze_recordings, jobs=jobs))
    wall_s, cpu_s = time.perf_counter() - begin[0], processor_time_s() - begin[1]
    compared = report.distributed
    figures = {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_mb": peak_memory_mb(),
        "worker_peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "ranks": len(report.ranks),
        "matched_collectives": compared.matched_collectives if compared is not None else 0,
    }
    print(json.dumps(figures))


def measure(folder: Path, jobs: int) -> dict[str, Any]:
    """One measurement in a fresh process."""
    given = ("--worker", folder, "--jobs", jobs)
    found = run_module("benchmarks.reading.ranks", *given, environment={**os.environ, CACHE_VARIABLE: OFF})
    figures: dict[str, Any] = json.loads(found)
    return figures


def page(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    cells = []
    for row in rows:
        ranks, times = row["ranks"], (row["wall_s"], row["cpu_s"])
        figures = [f"{time_s / each:.2f}" for each in (1, ranks) for time_s in times]
        worker_mb = f"{row['worker_peak_mb']:.0f}" if row["worker_peak_mb"] else "–"
        cells.append(
            (ranks, row["jobs"], *figures, f"{row['peak_mb']:.0f}", worker_mb, f"{row['matched_collectives']:,}")
        )
    heads = ("ranks", "jobs", "wall s", "CPU s", "wall s a rank", "CPU s a rank", "peak MB", "worker MB")
    first, last = rows[0], rows[-1]
    growth = (last["cpu_s"] / first["cpu_s"]) / (last["ranks"] / first["ranks"])
    return (
        "# Analysis time by ranks\n\n"
        f"`python -m benchmarks.reading.ranks`, method {about['method_version']}: {about['size_mb']:.0f} MB of JSON a "
        f"rank, {about['cores']} cores ({about['cpu']}), Python {about['python']}, medians of {about['rounds']} "
        f"rounds, load average at the start {about['load_average_at_start'][0]:.1f}.\n\n"
        f"{markdown_table((*heads, 'matched collectives'), cells, 9)}\n\n"
        f"CPU time a rank at {last['ranks']} ranks is {growth:.2f} times that at {first['ranks']}.\n"
    )


def main() -> None:
    """Make the runs, take turns, write the results."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("corpus", type=Path, nargs="?", help="the folder that holds traces/")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--size-mb", type=int, default=20, help="JSON text a rank")
    parser.add_argument("--jobs", type=int, nargs="+", default=[usable_cpus()], help="processes at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "lightning_perf_ranks")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        worker(arguments.worker, *arguments.jobs)
        return
    if arguments.corpus is None:
        parser.error("name the folder that holds traces/")
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    trace = work / f"one_rank_{arguments.size_mb}.json"
    replicate(arguments.corpus / "traces" / SOURCE, trace, arguments.size_mb * 10**6)
    folders = {ranks: work / f"{ranks}_ranks_{arguments.size_mb}" for ranks in sorted(set(arguments.ranks))}
    for ranks, folder in folders.items():
        make_run(trace, folder, ranks)
    about = {
        "method_version": METHOD_VERSION,
        "size_mb": trace.stat().st_size / 1e6,
        "cores": os.cpu_count(),
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "rounds": arguments.rounds,
        "load_average_at_start": os.getloadavg(),
    }
    arms = [(ranks, jobs) for ranks in folders for jobs in sorted(set(arguments.jobs))]
    found: dict[tuple[int, int], list[dict[str, Any]]] = {arm: [] for arm in arms}
    turns = random.Random(0)
    for number in range(arguments.rounds):
        for ranks, jobs in turns.sample(arms, len(arms)):
            found[ranks, jobs].append(measure(folders[ranks], jobs))
            wall_s = found[ranks, jobs][-1]["wall_s"]
            print(f"round {number + 1}: {ranks} ranks, {jobs} processes {wall_s:.2f} s", flush=True)
    rows = []
    for (ranks, jobs), figures in found.items():
        row = {key: statistics.median(each[key] for each in figures) for key in figures[0]}
        rows.append({**row, "ranks": ranks, "jobs": jobs, "matched_collectives": int(row["matched_collectives"])})
    write_page(arguments.results.with_suffix(".md"), page(about, rows))
    arguments.results.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
