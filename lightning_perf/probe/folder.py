"""Probes the recording of a run's folder or of a single trace."""

from __future__ import annotations

from pathlib import Path

from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.errors import TraceError
from lightning_perf.probe.run import probe_trace
from lightning_perf.probe.worker_process import ProbeWorker
from lightning_perf.run_files.probe import Probe
from lightning_perf.run_files.steps import STEPS
from lightning_perf.run_files.traces import find_traces, group_windows
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from lightning_perf.workers.process import WorkerError


def probe_path(path: Path, seconds: float, *, compiles: bool = False) -> Probe:
    """Probe a recording; of several ranks, the first one.

    Args:
        path: A trace, or the folder of a run.
        seconds: Time for the probe.
        compiles: Whether to compile the recorded calls, too.
    """
    folder = path if path.is_dir() else None
    windows = group_windows(find_traces(path))[0]
    try:
        with ProbeWorker() as worker:
            trace = concatenate([read_trace(window) for window in windows])
            usual_ns = _usual_step_ns(folder, trace.metadata.rank or 0) if folder is not None else None
            return probe_trace(trace, worker, seconds, has_cuda=has_cuda(), usual_step_ns=usual_ns, compiles=compiles)
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


def has_cuda() -> bool:
    """Return whether this machine has a CUDA device that torch can use."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())
