"""Whether the recorded training had the cores that it computes on to itself."""

from __future__ import annotations

from lightning_perf.trace.description import Processor
from lightning_perf.units import format_share

__all__ = ["contention", "is_busy", "is_oversubscribed"]

BUSY_LOAD = 1.5
"""From so many running processes per processor of the machine on, others wait at any time; and one more than fits."""

BUSY_WAIT = 0.1
"""From this share of its time spent waiting for a core on, the training thread is slowed down by others."""

THREADS_PER_CORE = 2
"""Processors of a core, where a recording knows only its cores."""


def contention(processor: Processor | None) -> str:
    """Say how the processor was contended for, in a sentence.

    Args:
        processor: The processor and its state, as `PerfCallback` noted them.

    Returns:
        The sentence; empty where nothing contended, or nothing is known.
    """
    if processor is None:
        return ""
    if is_oversubscribed(processor):
        may_use = _processors(_cpus(processor) or 0)
        return f"Oversubscribed: torch computes on {processor.threads:,} threads, and the process may use {may_use}."
    if processor.core_wait is not None and processor.core_wait >= BUSY_WAIT:
        waited = f"the training thread waited for a core for {format_share(processor.core_wait)} of the time"
        return f"The machine was busy during the recording: {waited}{_of_load(processor)}."
    if _is_loaded(processor):
        return f"The machine was busy during the recording: {_load_text(processor)}."
    return ""


def is_busy(processor: Processor | None) -> bool:
    """Whether anything contended for the processor."""
    return bool(contention(processor))


def is_oversubscribed(processor: Processor | None) -> bool:
    """Whether torch computes on more threads than the process may use processors."""
    cpus = _cpus(processor) if processor is not None else None
    return processor is not None and cpus is not None and (processor.threads or 0) > cpus


def _cpus(processor: Processor) -> int | None:
    if processor.cpus is not None:
        return processor.cpus
    return processor.cores * THREADS_PER_CORE if processor.cores else None


def _machine(processor: Processor) -> int | None:
    return processor.machine_cpus or processor.cpus or processor.cores


def _is_loaded(processor: Processor) -> bool:
    machine = _machine(processor)
    return bool(machine and processor.load is not None and processor.load >= max(BUSY_LOAD * machine, machine + 1))


def _load_text(processor: Processor) -> str:
    threads = f", of which torch uses {processor.threads:,}" if processor.threads else ""
    return f"a load of {processor.load:.1f} on {_processors(_machine(processor) or 0)}{threads}"


def _of_load(processor: Processor) -> str:
    return f" ({_load_text(processor)})" if _is_loaded(processor) else ""


def _processors(number: int) -> str:
    return f"{number:,} processor{'' if number == 1 else 's'}"
