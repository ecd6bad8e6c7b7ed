"""The settings that a probe tries: mixed precision, memory layout, threads, batch size."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CURRENT", "Setting"]


@dataclass(frozen=True)
class Setting:
    """A way to run the recorded calls.

    Attributes:
        name: ``current``, or the name of the change, e.g. ``bf16``.
        autocast: Type of autocast, ``bfloat16`` or ``float16``; ``None`` without autocast.
        threads: Threads of an operator on the processor; ``None`` to keep those of the recording.
        channels_last: Whether 4-dimensional weights are in channels last.
        batch: Factor of the batch size.
        tf32: Whether FP32 products may use TF32; ``None`` for torch's default.
    """

    name: str
    autocast: str | None = None
    threads: int | None = None
    channels_last: bool = False
    batch: int = 1
    tf32: bool | None = None


CURRENT = "current"
"""Name of the setting of the recording."""
