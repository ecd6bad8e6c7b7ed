"""The labels of categories, phases and gaps. Every format uses them."""

from __future__ import annotations

import re
from pathlib import Path

from lightning_perf.trace.description import Metadata, Processor, Settings
from lightning_perf.units import counted

CATEGORY_LABELS: dict[str, str] = {
    "device_compute": "device compute",
    "communication": "exposed communication",
    "memcpy": "device copies",
    "memcpy_h2d": "host to device",
    "memcpy_d2h": "device to host",
    "memcpy_d2d": "on the device",
    "memcpy_p2p": "between devices",
    "memcpy_unknown": "direction unknown",
    "memset": "device memset",
    "input": "waiting for input",
    "kernel_launch": "kernel launch",
    "runtime": "runtime calls",
    "runtime_sync": "synchronize",
    "runtime_alloc": "allocate",
    "runtime_other": "other calls",
    "host_compute": "host operators",
    "host_other": "host, other",
}
"""Rows of the step-time breakdown, short enough for a table."""

CATEGORY_CLAUSES: dict[str, str] = {
    "device_compute": "is device compute",
    "communication": "is communication that no compute hides",
    "memcpy": "is copies to, from and on the device",
    "memset": "is device memsets",
    "input": "waits for the next batch",
    "kernel_launch": "launches kernels while the device has nothing to do",
    "runtime": "is in runtime calls that launch nothing",
    "runtime_sync": "waits in synchronizing calls with the device idle",
    "runtime_alloc": "asks the driver for memory",
    "host_compute": "runs operators on the host",
    "host_other": "is Python, the framework or waiting",
}
"""The same categories as the end of a sentence that begins with a share."""

UNRECORDED_CLAUSES: dict[str, str] = {
    "kernel_launch": "launches kernels",
    "runtime_sync": "waits in synchronizing calls",
}
"""Clauses for a recording without device work: the state of the device is unknown."""

NO_OPERATORS_CLAUSE = "is the host without recorded operators"
"""The clause for the rest of the host's time in a recording without operators."""

GAP_LABELS: dict[str, str] = {
    "kernel_gap": "work was queued",
    "input": "waiting for input",
    "kernel_launch": "launching",
    "runtime_sync": "synchronizing",
    "runtime_alloc": "allocating",
    "runtime_other": "other runtime calls",
    "host_compute": "operators on the host",
    "host_other": "Python and waiting",
}
"""Activities of the host while the device was idle."""

PHASE_LABELS: dict[str, str] = {
    "fetch": "fetch batch",
    "transfer": "move batch",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "validation": "validation",
    "checkpoint": "checkpoint",
    "other": "other",
}

MEMORY_LABELS: dict[str, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "inputs": "inputs",
    "temporaries": "temporary",
    "unknown": "unknown",
    "before_recording": "from before the recording",
    "fragmentation": "fragmentation",
    "lightning_perf": "lightning_perf",
}
"""Purposes of memory."""


def run_name(sources: tuple[str, ...]) -> str:
    """Name the run of trace files: by the file, or by the folder that holds several."""
    if not sources:
        return "run"
    path = Path(sources[0])
    return path.name if len(sources) == 1 else path.parent.name


def settings_text(settings: Settings | None) -> list[str]:
    """Return the settings of torch that are on by choice: determinism, and the measurements of cuDNN."""
    if settings is None:
        return []
    texts = ["deterministic algorithms"] if settings.deterministic or settings.cudnn_deterministic else []
    return texts + (["cudnn.benchmark on"] if settings.cudnn_benchmark else [])


def processor_text(processor: Processor) -> str:
    """Describe a processor in a few words.

    Example:
        >>> processor_text(Processor("AMD EPYC 9654", cores=8, threads=1, bf16=("avx512_bf16",)))
        'AMD EPYC 9654 with avx512_bf16, 1 thread on 8 cores'
    """
    text = processor.name or "a processor"
    if processor.bf16:
        text += f" with {', '.join(processor.bf16)}"
    if processor.threads:
        text += f", {counted(processor.threads, 'thread')}"
        text += f" on {counted(processor.cores, 'core')}" if processor.cores else ""
    return text


def is_amd(metadata: Metadata) -> bool:
    """Return whether the recorded devices are AMD's."""
    return metadata.is_hip or any(re.search("AMD|Radeon|Instinct", device.name or "") for device in metadata.devices)


def matrix_units(metadata: Metadata) -> str:
    """Return the name of the vendor for its matrix units."""
    return "Matrix Cores (MFMA)" if is_amd(metadata) else "Tensor Cores"
