"""The base class of all runtimes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from lightning_perf.inference.model import Subject

Call = Callable[[Tensor], Tensor]
"""A function from float32 inputs ``(n, …)`` to float32 outputs ``(n, …)``, both on the runtime's device, for any n ≥
1."""


class Runtime(ABC):
    """One way to execute a model.

    Attributes:
        name: Name in tables and in ``--variants``, e.g. ``onnxruntime-int8``.
    """

    name: str
    summary: str

    def missing(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Return why the runtime cannot run on this machine and how to fix that, or None. Imports nothing heavy."""
        return None

    @abstractmethod
    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write everything that a fresh process needs to run the model into an empty folder.

        Raises:
            VariantError: The model or the machine is not suitable; the message says why.
        """

    @abstractmethod
    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        """Load the files that `build` wrote, possibly in another process.

        Raises:
            VariantError: They cannot be loaded on this machine.
        """
