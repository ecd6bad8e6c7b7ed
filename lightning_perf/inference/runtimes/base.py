"""The base class of all runtimes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from lightning_perf.inference.model.subject import Subject

__all__ = ["Call", "Runtime"]

Call = Callable[[Tensor], Tensor]
"""From float32 inputs ``(n, …)`` to float32 outputs ``(n, …)``, both on the runtime's device; any ``n`` from 1 on."""


class Runtime(ABC):
    """One way to execute a model.

    Attributes:
        name: Its name in tables and in ``--variants``, as ``onnxruntime-int8``.
        summary: What it does, in a line.
    """

    name: str
    summary: str

    def missing(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Say why it cannot run here and what would help, or None when it can. Imports nothing heavy."""
        return None

    @abstractmethod
    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write into an empty folder all that a fresh process needs to run the model.

        Returns:
            Provenance: settings and versions that decided the outcome.

        Raises:
            VariantError: The model or the machine does not allow it; the message says why.
        """

    @abstractmethod
    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        """Load what `build` wrote, also in another process.

        Raises:
            VariantError: It cannot be loaded here.
        """
