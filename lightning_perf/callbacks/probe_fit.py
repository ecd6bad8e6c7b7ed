"""The probe after a fit: runs the recorded operators again in a worker process, before the report is made."""

from __future__ import annotations

from pathlib import Path

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.errors import TraceError
from lightning_perf.run_files.probe import DEFAULT_SECONDS

ProbeOption = bool | float | None
"""``None`` lets the length of the fit decide, a number gives the seconds."""

SHARE = 0.1
"""Largest share of the fit's time that a probe may take unless you ask for it."""


def check_probe(probe: ProbeOption) -> None:
    """Check the argument `probe` of `PerfCallback`."""
    if probe is None or isinstance(probe, bool):
        return
    if not isinstance(probe, int | float):
        raise TypeError(f"probe={probe!r} must be True, False, None or a number of seconds")
    if not probe > 0 or probe == float("inf"):
        raise ValueError(f"probe={probe!r} must be a number of seconds greater than 0; probe=False turns the probe off")


def probe_seconds(probe: ProbeOption, fit_s: float, world_size: int) -> float:
    """Return the time for the probe; 0 for none.

    Args:
        world_size: Ranks of the fit. With several, the others may still be busy, so a probe has to be requested.
    """
    if probe is None:
        return DEFAULT_SECONDS if fit_s * SHARE >= DEFAULT_SECONDS and world_size == 1 else 0.0
    if isinstance(probe, bool):
        return DEFAULT_SECONDS if probe else 0.0
    return float(probe)


def probe_fit(folder: Path, seconds: float, errors: ErrorReporter, *, requested: bool) -> None:
    """Probe the recording of a fit, and write ``probe.json``. An error is reported and not raised."""
    try:
        from lightning_perf.probe.run import probe_path
        from lightning_perf.run_files.probe import write_probe

        write_probe(folder, probe_path(folder, seconds))
    except TraceError as error:
        if requested:
            errors.report("the recorded operators are not probed", error)
    except Exception as error:
        errors.report("the recorded operators are not probed", error)
