"""Time and memory of reading and analysing traces, compared with a floor and other tools, in one interleaved run.

    python -m benchmarks.reading.trace_reading /path/to/corpus --traceinsight-python /venv/bin/python

Traces of the wanted sizes are made once by repeating a real one with later times and new correlation numbers. Every
measurement is a fresh process, and the arms take turns. The median of the rounds is reported: wall and CPU seconds
after the imports, peak resident memory, and its peak without pages of files, which the system can drop. Arms:

- ``floor``: read, cut and decode the same bytes into typed events (needed fields only), keeping nothing
- ``read_trace``: `lightning_perf.read_trace` in one process
- ``read_trace_gz``: the same on the gzipped file
- ``read_trace_cores``, ``read_trace_cores_gz``: the same with a worker process for each processor
- ``read_again``, ``read_again_gz``: a second `lightning_perf.read_trace`, which finds the columns in the cache
- ``analyze``: `lightning_perf.analyze` in one process, everything in the report, without the cache
- ``analyze_gz``: the same on the gzipped file
- ``analyze_kept``: ``analyze`` with an empty cache of columns: it keeps them, and memory holds those in use
- ``analyze_cores``: the same as ``lightning-perf analyze`` does it, with worker processes where they pay
- ``torch_tb_profiler``: its loader (installed in this environment or left out)
- ``traceinsight``: formerly HTA, load and temporal breakdown (needs ``--traceinsight-python``)

An arm that read nothing is an error: each of them counts the events that it has in the end.

Writes ``benchmarks/results/trace_reading.json`` and ``.md`` (``--results`` chooses another place).
"""

from __future__ import annotations

import datetime
import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparing.replicate import replicate
from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.processes import peak_memory_mb, processor_time_s
from lightning_perf.machine.environment import cpu_name
from lightning_perf.run_files.user_cache import CACHE_VARIABLE, OFF

RESULTS = Path(__file__).parents[1] / "results" / "trace_reading"
METHOD_VERSION = 6

SAMPLE_S = 0.02
"""Time between two looks at the memory of a measured process."""

PEERS = ("torch_tb_profiler", "traceinsight")
"""The arms that take minutes: they run in fewer rounds, and where wanted on fewer sources."""

SOURCES = {
    "A": "hta/nccl_parser_config/nccl_data.b4b6dce.json.gz",
    "B": "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.941dea2.json.gz",
}
"""A: ResNet on an A100 with NCCL, no Python stacks. B: ResNet-18 on an MI300X with Python stacks and memory events."""

_TRACEINSIGHT = """
import json, sys, time
from hta.trace_analysis import TraceAnalysis
wall, cpu = time.perf_counter(), time.process_time()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2])
breakdown = analysis.get_temporal_breakdown(visualize=False)
print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
    "peak_mb": int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024,
    "count": len(analysis.t.get_trace(0)) if len(breakdown) else 0}))
"""


def floor(path: Path) -> int:
    """Decode every event, keep none; returns their number."""
    from lightning_perf.trace.text.bytestream import ByteStream
    from lightning_perf.trace.text.events import decode
    from lightning_perf.trace.text.pieces import EventText

    gc.disable()
    stream = ByteStream(path)
    return sum(len(decode(b"[" + piece + b"]")) for piece in EventText(path, stream.chunks()).pieces())


def reading(path: Path, processes: int = 1) -> int:
    """Read; returns the number of rows."""
    from lightning_perf import read_trace

    return sum(len(table) for table in read_trace(path, processes=processes).tables())


def reading_on_all(path: Path) -> int:
    """Read with a worker process for each processor; returns the number of rows."""
    from lightning_perf.workers.limits import usable_cpus

    return reading(path, usable_cpus())


def analysis(path: Path, jobs: int | None = 1) -> int:
    """Read and analyse everything; returns the number of ranks."""
    from lightning_perf.report.build import analyze
    from lightning_perf.report.recordings import analyze_recordings

    return len(analyze(path, executor=functools.partial(analyze_recordings, jobs=jobs)).ranks)


def analysis_on_all(path: Path) -> int:
    """Do the same with as many processes as there are processors."""
    return analysis(path, None)


def tb_profiler(path: Path) -> int:
    """The loader of torch-tb-profiler; returns the number of events."""
    from torch_tb_profiler.profiler.data import RunProfileData

    with tempfile.TemporaryDirectory() as cache:
        return len(RunProfileData.parse("worker0", None, str(path), cache).events)


WORKERS: dict[str, tuple[Callable[[Path], int], tuple[str, ...]]] = {
    "floor": (floor, ("lightning_perf.trace.reader",)),
    "read_trace": (reading, ("lightning_perf.trace.reader",)),
    "read_trace_gz": (reading, ("lightning_perf.trace.reader",)),
    "read_trace_cores": (reading_on_all, ("lightning_perf.trace.parallel", "lightning_perf.trace.reader")),
    "read_trace_cores_gz": (reading_on_all, ("lightning_perf.trace.parallel", "lightning_perf.trace.reader")),
    "read_again": (reading, ("lightning_perf.trace.reader",)),
    "read_again_gz": (reading, ("lightning_perf.trace.reader",)),
    "analyze": (analysis, ("lightning_perf.report.build",)),
    "analyze_gz": (analysis, ("lightning_perf.report.build",)),
    "analyze_kept": (analysis, ("lightning_perf.report.build",)),
    "analyze_cores": (analysis_on_all, ("lightning_perf.report.build",)),
    "torch_tb_profiler": (tb_profiler, ("torch_tb_profiler.profiler.data",)),
}


def worker(arm: str, path: Path) -> None:
    """Measure one arm in this process and print the figures."""
    run, modules = WORKERS[arm]
    for module in modules:
        importlib.import_module(module)
    wall, cpu = time.perf_counter(), processor_time_s()
    count = run(path)
    figures = {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": processor_time_s() - cpu,
        "peak_mb": peak_memory_mb(),
        "count": count,
    }
    print(json.dumps(figures))


def measure(arm: str, path: Path, traceinsight_python: str | None) -> dict[str, Any]:
    """One measurement in a fresh process."""
    if arm == "traceinsight":
        command = [str(traceinsight_python), "-c", _TRACEINSIGHT, str(path), str(path.parent)]
    else:
        command = [sys.executable, "-m", "benchmarks.reading.trace_reading", "--worker", arm, str(path)]
    again = arm.startswith("read_again")
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, CACHE_VARIABLE: cache if again or arm == "analyze_kept" else OFF}
        for _ in range(1 + again):  # the first reader fills the cache
            code, output, errors, anonymous_mb = watched(command, environment)
    lines = output.strip().splitlines()
    if code or not lines:
        return {"error": (errors.strip().splitlines() or ["no output"])[-1][:300]}
    figures: dict[str, Any] = {"anonymous_mb": anonymous_mb, **json.loads(lines[-1])}
    return figures if figures["count"] else {"error": f"{arm} read no event"}


def watched(command: list[str], environment: dict[str, str]) -> tuple[int, str, str, float]:
    """Run a command; return its exit code, both outputs, and its peak memory without pages of files, in MB."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    status, peak_kb = Path(f"/proc/{process.pid}/status"), 0
    while process.poll() is None:  # the outputs are short enough for their pipes
        found = status.read_text().partition("RssAnon:")[2].split()  # none of a process that has just ended
        peak_kb = max(peak_kb, int(found[0]) if found else 0)
        time.sleep(SAMPLE_S)
    output, errors = process.communicate()
    return process.returncode, output, errors, peak_kb / 1024


def environment(traceinsight_python: str | None) -> dict[str, Any]:
    """Hardware and versions."""
    versions = {}
    for package in ("msgspec", "numpy", "isal", "torch-tb-profiler"):
        found = next(iter(importlib.metadata.distributions(name=package)), None)
        versions[package] = found.version if found else "not installed"
    if traceinsight_python:
        code = "import importlib.metadata as m; print(m.version('traceinsight'))"
        done = subprocess.run([traceinsight_python, "-c", code], capture_output=True, text=True, check=False)
        versions["traceinsight"] = done.stdout.strip() or "not installed"
    return {
        "method_version": METHOD_VERSION,
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
        "load_average_at_start": os.getloadavg(),
    }


def main() -> None:
    """Make the traces, take turns, write the results."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("corpus", type=Path, help="the folder that holds traces/")
    parser.add_argument("--sizes-mb", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--sources", nargs="+", choices=sorted(SOURCES), default=["A", "B"])
    parser.add_argument("--arms", nargs="+", default=[*WORKERS, "traceinsight"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-rounds", type=int, default=1, help="rounds for the slow peers")
    parser.add_argument("--peer-sources", nargs="+", choices=sorted(SOURCES), help="sources for the slow peers: all")
    parser.add_argument("--traceinsight-python", default=None)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "lightning_perf_bench")
    arguments = parser.parse_args()
    arms = list(arguments.arms)
    if "traceinsight" in arms and not arguments.traceinsight_python:
        print("traceinsight left out: name an interpreter that has it with --traceinsight-python")
        arms.remove("traceinsight")
    if "torch_tb_profiler" in arms and importlib.util.find_spec("torch_tb_profiler") is None:
        print("torch_tb_profiler left out: it is not installed here")
        arms.remove("torch_tb_profiler")
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    about = environment(arguments.traceinsight_python)
    for name in arguments.sources:
        with_peers = name in (arguments.peer_sources or arguments.sources)
        turns = [arm for arm in arms if with_peers or arm not in PEERS]
        source = arguments.corpus / "traces" / SOURCES[name]
        for size_mb in arguments.sizes_mb:
            target = arguments.work / f"{name}_{size_mb}.pt.trace.json"
            replicate(source, target, size_mb * 1_000_000)
            zipped = target.with_name(target.name + ".gz")
            if any(arm.endswith("_gz") for arm in turns):
                replicate(source, zipped, size_mb * 1_000_000)
            results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in turns}
            for turn in range(arguments.rounds):
                for arm in turns if turn % 2 == 0 else reversed(turns):
                    if arm in PEERS and turn >= arguments.peer_rounds:
                        continue
                    path = zipped if arm.endswith("_gz") else target
                    results[arm].append(measure(arm, path, arguments.traceinsight_python))
            rows += [summary(name, target, arm, found) for arm, found in results.items()]
            for row in rows[-len(turns) :]:
                print(row, flush=True)
            write(arguments.results, about, rows)  # after every size, so that an interrupted run keeps its results


def summary(source: str, path: Path, arm: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of an arm's rounds."""
    row: dict[str, Any] = {"source": source, "size_mb": round(path.stat().st_size / 1e6, 1), "arm": arm}
    good = [figures for figures in found if "error" not in figures]
    if not good:
        return {**row, "error": found[0]["error"] if found else "not run"}
    for key in ("wall_s", "cpu_s", "peak_mb", "anonymous_mb"):
        row[key] = round(float(np.median([figures[key] for figures in good])), 3)
    row["rounds"] = len(good)
    if arm == "floor":
        row["events"] = good[0]["count"]
    return row


def write(results: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the results as JSON and as a table."""
    floors = {(row["source"], row["size_mb"]): row for row in rows if row["arm"] == "floor" and "error" not in row}
    cells = []
    for row in rows:
        base = floors.get((row["source"], row["size_mb"]))
        figures = [f"failed: {row['error']}", *[""] * 5] if "error" in row else []
        for key in () if figures else ("wall_s", "cpu_s"):
            figures += [f"{row[key]:.2f}", f"{row[key] / base[key]:.2f}" if base else ""]
        figures += [] if "error" in row else [f"{row[key]:.0f}" for key in ("peak_mb", "anonymous_mb")]
        cells.append((row["source"], row["size_mb"], f"{base['events']:,}" if base else "", row["arm"], *figures))
    heads = ("source", "MB", "events", "arm", "wall s", "× floor", "CPU s", "× floor", "peak MiB", "without files")
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    write_page(
        results.with_suffix(".md"),
        "# Reading and analysing traces\n\n"
        f"{about['date']}, {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB; Python {about['python']}; "
        f"{versions}; load average {about['load_average_at_start'][0]:.1f} at the start. Method version "
        f"{about['method_version']}: `benchmarks.reading.trace_reading` describes the arms. Medians of interleaved "
        f"rounds, each a fresh process; imports are not counted.\n\n{markdown_table(heads, cells, 6)}\n",
    )
    document = {"about": about, "rows": rows}
    results.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
