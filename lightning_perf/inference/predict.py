"""Outputs of a variant for many inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lightning_perf.inference.runtime import Call

__all__ = ["predict"]

BATCH = 32
"""Inputs at a time. Who compares outputs of two processes has them made in the same batches: for another size a library
may choose another kernel, which rounds otherwise."""


def predict(call: Call, inputs: NDArray[np.float32], device: torch.device) -> NDArray[np.float32]:
    """Run a variant on inputs, some at a time.

    The last batch is filled up with inputs that were there before: runtimes that compile each batch size would take
    seconds for that of the rest.

    Args:
        call: The variant.
        inputs: ``(n, …)``, at least one; may be mapped from a file.
        device: Where the variant runs.

    Returns:
        ``(n, …)``.
    """
    parts = []
    for start in range(0, len(inputs), BATCH):
        rows = np.array(inputs[max(0, min(start, len(inputs) - BATCH)) : start + BATCH])
        outputs = call(torch.from_numpy(rows).to(device)).cpu().numpy()
        parts.append(outputs[-len(inputs[start : start + BATCH]) :])
    return np.concatenate(parts)
