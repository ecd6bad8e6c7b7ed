"""Describe the versions and the device behind the figures."""

from __future__ import annotations

from lightning_perf.machine.environment import cpu_name, version_facts


def known_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries, by their names in run records."""
    return {name: str(value) for name, value in version_facts().items() if value is not None}


def versions_text() -> str:
    """Return the versions as text, e.g. ``python 3.12.3, torch 2.15.0``."""
    return ", ".join(f"{name.removeprefix('version.')} {value}" for name, value in known_versions().items())


def device_name() -> str:
    """Return the name of the CUDA GPU that a Trainer would use, or of the processor."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_name()
