"""``out_of_memory.rank0.jsonl``: the state of a training at the moment when its memory ran out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from lightning_perf.run_files.fit.memory_growth import TensorGroup
from lightning_perf.run_files.jsonl import Count, RankLog
from lightning_perf.units import format_bytes

MemoryPhase: TypeAlias = Literal[
    "fetch", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint", "other"
]

_PLACES: dict[MemoryPhase, str] = {
    "fetch": "the fetch of a batch",
    "transfer": "the move of a batch to the device",
    "forward": "the forward",
    "backward": "the backward",
    "optimizer": "the optimizer step",
    "validation": "the validation",
    "checkpoint": "the saving of a checkpoint",
    "other": "the training",
}


class OutOfMemory(Struct, frozen=True):
    """The state of a training when its memory ran out. None stands for a figure that could not be read.

    Attributes:
        rank: The process that ran out of memory.
        step: Number of the optimizer step.
        phase: The phase of the step.
        module: The innermost module in its forward, by its name in the model, e.g. ``encoder.layers.3``; None outside
            of a forward.
        module_class: Its class.
        device: The device without memory: ``cpu``, ``cuda:0``, ….
        asked_bytes: The size of the allocation that failed.
        message: The first line of the error.
        parameters_bytes: Parameters and buffers on that device.
        gradients_bytes: Gradients on that device.
        optimizer_state_bytes: State of the optimizers on that device.
        allocated_bytes: Memory in tensors, by the allocator of a GPU.
        reserved_bytes: Memory that the allocator held, on a GPU.
        free_bytes: Memory that was free: on the GPU, or for this process on the host.
        total_bytes: Memory of the GPU; None on the host.
        limit_bytes: The most that torch may use of it, if the program has set a limit.
        tensors: The largest groups of tensors on that device that Python objects refer to, the largest first.
        batch_size: Samples of a batch, by the data loader.
        snapshot: File name of the snapshot of the GPU's allocator, next to this file; None without one.
        fixes: Changes that reduce the memory, the most promising first.
    """

    rank: Count
    step: int | None
    phase: MemoryPhase
    module: str | None
    module_class: str | None
    device: str
    asked_bytes: int | None
    message: str
    parameters_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_state_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    batch_size: int | None = None
    snapshot: str | None = None
    fixes: tuple[str, ...] = ()
    limit_bytes: int | None = None
    tensors: tuple[TensorGroup, ...] = ()

    @property
    def sentence(self) -> str:
        """Where and when the memory ran out."""
        device = "the host" if self.device == "cpu" else self.device
        place = _PLACES[self.phase]
        if self.module is not None:
            place += f" of {self.module or 'the model'} ({self.module_class})"
        step = f" in step {self.step}" if self.step is not None else ""
        asked = f", while allocating {format_bytes(self.asked_bytes)}" if self.asked_bytes is not None else ""
        return f"Rank {self.rank} ran out of memory on {device}{step}: in {place}{asked}."

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The known amounts of memory with their names."""
        sizes = (
            ("parameters", self.parameters_bytes),
            ("gradients", self.gradients_bytes),
            ("optimizer state", self.optimizer_state_bytes),
            ("all tensors", self.allocated_bytes),
            ("reserved", self.reserved_bytes),
            ("limit of the process", self.limit_bytes),
            ("free", self.free_bytes),
            ("total", self.total_bytes),
        )
        return tuple((name, size) for name, size in sizes if size is not None)

    @property
    def largest(self) -> str:
        """The largest groups of tensors in a sentence; empty if none is known."""
        named = [f"{each.count:,} × {each.kind} ({format_bytes(each.bytes)})" for each in self.tensors]
        return f"Largest tensors: {', '.join(named)}." if named else ""


_FILES: RankLog[OutOfMemory] = RankLog(OutOfMemory, "out_of_memory", "report of missing memory")
read_out_of_memory = _FILES.read_all


def write_out_of_memory(folder: Path, report: OutOfMemory) -> Path:
    """Write the report of a rank, and return its path."""
    return _FILES.replace(folder, report.rank, report)


def has_out_of_memory(folder: Path) -> bool:
    """Return whether a run left a report."""
    return bool(_FILES.paths(folder))
