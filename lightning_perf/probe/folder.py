"""Probes the recording of a run's folder, of a single trace, or of a report."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.errors import TraceError
from lightning_perf.probe.run import probe_trace
from lightning_perf.probe.worker_process import ProbeWorker
from lightning_perf.run_files.probe import Probe
from lightning_perf.run_files.report import REPORT_NAME
from lightning_perf.run_files.steps import STEPS
from lightning_perf.run_files.traces import find_traces, group_windows
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from lightning_perf.workers.process import WorkerError

__all__ = ["probe_path", "run_folder"]


class _Sources(msgspec.Struct):
    sources: tuple[str, ...]


def run_folder(path: Path) -> Path | None:
    """Return the folder of the run that a path names: itself, or that of a report. ``None`` for a single trace."""
    return path if path.is_dir() else path.parent if path.name == REPORT_NAME else None


def probe_path(path: Path, seconds: float, *, compiles: bool = False) -> tuple[Probe, Path | None]:
    """Probe a recording.

    Args:
        path: A trace, the folder of a run, or a report. Of several ranks, the first one is probed.
        seconds: Time for the probe.
        compiles: Whether to compile the recorded calls, too.

    Returns:
        The probe, and the folder of the run; ``None`` for a single trace.

    Raises:
        TraceError: There is no trace, it cannot be probed on this machine, or the probe failed.
    """
    folder = run_folder(path)
    windows = group_windows(_traces(path))[0]
    try:
        with ProbeWorker() as worker:
            trace = concatenate([read_trace(window) for window in windows])
            usual_ns = _usual_step_ns(folder, trace.metadata.rank or 0) if folder is not None else None
            probe = probe_trace(trace, worker, seconds, has_cuda=has_cuda(), usual_step_ns=usual_ns, compiles=compiles)
            return probe, folder
    except WorkerError as error:
        raise TraceError(
            path, f"could not be probed: {error}", "Try again with more memory or more --seconds"
        ) from error


def _usual_step_ns(folder: Path, rank: int) -> float | None:
    """Return the median step time without the profiler; ``None`` if the run did not keep it."""
    path = STEPS.path(folder, rank)
    try:
        samples = STEPS.read(path) if path.exists() else ()
    except TraceError:
        return None
    times = summarize_step_times(samples) if samples else None
    return None if times is None or times.only_profiled else times.p50_ns


def _traces(path: Path) -> list[Path]:
    if path.suffix != ".json" or path.name.endswith(".trace.json"):
        return list(find_traces(path))
    try:
        sources = msgspec.json.decode(path.read_bytes(), type=_Sources).sources
    except (OSError, msgspec.DecodeError):
        return list(find_traces(path))  # a trace, or an error that names the problem
    found = [place for source in sources for place in (Path(source), path.parent / Path(source).name) if place.exists()]
    if not found:
        raise TraceError(path, "names traces that are not here", "Copy the traces next to the report")
    return found


def has_cuda() -> bool:
    """Return whether this machine has a CUDA device that torch can use."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())
