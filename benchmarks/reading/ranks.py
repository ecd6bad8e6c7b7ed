"""Measure how the time to analyse a run grows with its ranks.

    python benchmarks/reading/ranks.py /path/to/corpus --ranks 1 2 4 8 16 32
    python benchmarks/reading/ranks.py /path/to/corpus --ranks 1 64 --size-mb 100 --jobs 1 2 --results many_ranks

The traces are from a real DDP training (`replicate.py` makes one of any size), with one file for each rank. Each rank
starts its steps a little later than the previous one, so that ranks wait for each other. Every measurement is a fresh
process that analyses the whole folder; CPU seconds include its worker processes. By default a folder of N ranks is
analysed by as many processes at once as there are cores. The cache of columns is off. The order of the arms changes
from round to round, and the median of the rounds is reported.

Writes ``results/ranks.json`` and ``.md`` in this folder (``--results`` chooses another place).
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
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
# The repository instead of this folder, so that no file here shadows a module of the standard library.
sys.path[0] = str(HERE.parent)

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

    begin = time.perf_counter(), _cpu_s()
    report = analyze(folder, executor=functools.partial(analyze_recordings, jobs=jobs))
    wall_s, cpu_s = time.perf_counter() - begin[0], _cpu_s() - begin[1]
    compared = report.distributed
    figures = {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_mb": _peak_mb(),
        "worker_peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "ranks": len(report.ranks),
        "matched_collectives": compared.matched_collectives if compared is not None else 0,
    }
    print(json.dumps(figures))


def _peak_mb() -> float:
    # ru_maxrss of this process would include the memory of its parent at the start.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(folder: Path, jobs: int) -> dict[str, Any]:
    """One measurement in a fresh process."""
    from lightning_perf.run_files.user_cache import CACHE_VARIABLE, OFF

    command = [sys.executable, __file__, "--worker", str(folder), "--jobs", str(jobs)]
    environment = {**os.environ, CACHE_VARIABLE: OFF}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"analysing {folder} failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def table(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    first = rows[0]
    lines = [
        "# Analysis time by ranks",
        "",
        (
            f"`benchmarks/reading/ranks.py`, method {about['method_version']}: {about['size_mb']:.0f} MB of "
            f"JSON a rank, "
            f"{about['cores']} cores ({about['cpu']}), Python {about['python']}, medians of {about['rounds']} rounds, "
            f"load average at the start {about['load_average_at_start'][0]:.1f}."
        ),
        "",
        "| ranks | jobs | wall s | CPU s | wall s a rank | CPU s a rank | peak MB | worker MB | matched collectives |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        ranks = row["ranks"]
        cells = (
            ranks,
            row["jobs"],
            f"{row['wall_s']:.2f}",
            f"{row['cpu_s']:.2f}",
            f"{row['wall_s'] / ranks:.2f}",
            f"{row['cpu_s'] / ranks:.2f}",
            f"{row['peak_mb']:.0f}",
            f"{row['worker_peak_mb']:.0f}" if row["worker_peak_mb"] else "–",
            f"{row['matched_collectives']:,}",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    last = rows[-1]
    growth = (last["cpu_s"] / first["cpu_s"]) / (last["ranks"] / first["ranks"])
    lines += ["", f"CPU time a rank at {last['ranks']} ranks is {growth:.2f} times that at {first['ranks']}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make the runs, take turns, write the results."""
    from lightning_perf.workers.limits import usable_cpus

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="?", help="the folder that holds traces/")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--size-mb", type=int, default=20, help="JSON text a rank")
    parser.add_argument("--jobs", type=int, nargs="+", default=[usable_cpus()], help="processes at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "lightning_perf_ranks")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "ranks", help="the files without suffix")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        worker(arguments.worker, *arguments.jobs)
        return
    if arguments.corpus is None:
        parser.error("name the folder that holds traces/")
    from benchmarks.comparing.replicate import replicate
    from lightning_perf.machine.environment import cpu_name

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
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    text = table(about, rows)
    arguments.results.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
