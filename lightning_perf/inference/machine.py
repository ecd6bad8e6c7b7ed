"""The machine that was measured on, for documents."""

from __future__ import annotations

import os

import torch

from lightning_perf.environment import cpu_name, device_facts, host_notes, version_facts
from lightning_perf.inference.tradeoff import Machine

__all__ = ["describe_machine", "load_average"]


def describe_machine(device: torch.device) -> Machine:
    """Describe it before a measurement; its load afterwards is not known yet."""
    facts, notes = device_facts(device), host_notes()
    return Machine(
        device=str(facts["device.name"]),
        device_type=device.type,
        cpu=cpu_name(),
        cpus=os.cpu_count() or 1 if notes["cpus"] is None else int(notes["cpus"]),
        platform=str(notes["platform"]),
        load_before=load_average(),
        load_after=None,
        versions={
            fact.partition(".")[2]: str(version) for fact, version in version_facts().items() if version is not None
        },
    )


def load_average() -> float | None:
    """Processes that ran or waited to, averaged over a minute; None where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
