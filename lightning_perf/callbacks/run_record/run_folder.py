"""Claiming the folder of a fit, the same on all ranks."""

from __future__ import annotations

from pathlib import Path

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.run_files.run_folder import make_run_folder

__all__ = ["claim_run_folder"]


def claim_run_folder(trainer: Trainer, dirpath: str | None, errors: ErrorReporter) -> Path | None:
    """Make the folder of a fit. A collective call: every rank makes it, and all get the same answer.

    Args:
        trainer: The Trainer, in a fit.
        dirpath: The folder's path; None for ``perf`` in the Trainer's log directory.
        errors: Where it is reported that no folder can be made.

    Returns:
        The folder: the path itself where it is free, or else with the first free suffix ``_1``, ``_2``, … None when
        none can be made.
    """
    log_dir = None
    try:
        log_dir = trainer.log_dir  # a collective itself, and None where loggers save nothing (`fast_dev_run`)
    except Exception as error:  # it asks the first logger, which may be of any make
        errors.report(f"the logger has no folder, {trainer.default_root_dir} is used", error)
    log_dir = log_dir or trainer.default_root_dir
    made: str | None = None
    if trainer.is_global_zero:
        try:
            made = str(make_run_folder(dirpath if dirpath is not None else _join(log_dir, "perf")))
        except Exception as error:
            errors.report("traces and step times are not saved, give PerfCallback(dirpath=…) a writable folder", error)
    made = trainer.strategy.broadcast(made)
    if made is None:
        return None
    folder = Path(made)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # on another machine it need not exist yet
    except OSError as error:
        errors.report(f"traces and step times of rank {trainer.global_rank} are not saved", error)
        return None
    return folder


def _join(log_dir: str, name: str) -> str:
    return f"{str(log_dir).rstrip('/')}/{name}"
