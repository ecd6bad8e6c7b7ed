"""Contention for the cores: whether other programs, or too many threads, slowed the recorded training."""

from __future__ import annotations

from lightning_perf.trace.description import Processor
from lightning_perf.units import format_share

BUSY_LOAD = 1.5
"""Load per processor from which the machine counts as busy, if the load also exceeds the processors by one."""

BUSY_WAIT = 0.1
"""Share of its time that the training thread waits for a core, from which the machine counts as busy."""

THREADS_PER_CORE = 2
"""Logical processors per core, for recordings that know only the cores."""


def contention(processor: Processor | None) -> str:
    """Return a sentence about the contention for the processor.

    Returns:
        The sentence. It is empty if there was no contention, or if the recording does not say.
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
    """Return whether there was contention for the processor."""
    return bool(contention(processor))


def free_cores(processor: Processor, workers: int) -> float | None:
    """Return the cores that other programs and the loader's workers leave to the training; None if unknown."""
    if processor.cores is None or processor.other_cpu is None:
        return None
    return max(0.0, processor.cores - processor.other_cpu - workers * (processor.worker_cpu or 0.0))


def is_oversubscribed(processor: Processor | None) -> bool:
    """Return whether torch computes on more threads than the process may use processors."""
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
    threads = ""
    if processor.threads:
        threads = f", and torch uses {processor.threads:,} thread{'' if processor.threads == 1 else 's'}"
    return f"a load of {processor.load:.1f} on {_processors(_machine(processor) or 0)}{threads}"


def _of_load(processor: Processor) -> str:
    return f" ({_load_text(processor)})" if _is_loaded(processor) else ""


def _processors(number: int) -> str:
    return f"{number:,} processor{'' if number == 1 else 's'}"
