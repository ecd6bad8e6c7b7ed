"""PyTorch as it is: the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.torch_module import load_module, module_call, save_module
from lightning_perf.inference.subject import Subject

__all__ = ["Eager"]


class Eager:
    """The module itself in float32, operator by operator.

    The file is a pickle of the whole module: loading it runs code of whoever wrote it, and needs the model's class.
    The number of CPU threads is torch's own for the process: `torch.set_num_threads`.
    """

    name = "eager"
    summary = "PyTorch as it is, float32"

    def missing(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Nothing is."""
        return None

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module."""
        save_module(subject.module, folder)
        return {"dtype": "float32"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the module."""
        return module_call(load_module(folder, device))
