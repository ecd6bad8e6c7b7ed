"""TorchInductor by `torch.compile`, with frozen weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.inductor_jit import compiled_call, missing_inductor_tools
from lightning_perf.inference.runtimes.torch_module import load_module, save_module
from lightning_perf.inference.subject import Subject

__all__ = ["Compile"]


class Compile:
    """Compiled in each process anew, for each batch size when it first comes.

    Freezing makes weights constants, so that batch norms fold into convolutions and weights are laid out for the
    kernels beforehand. The file is a pickle of the whole module, as `Eager`'s.
    """

    name = "compile"
    summary = "torch.compile (TorchInductor), float32, frozen weights"

    def missing(self, device: torch.device) -> str | None:
        """Say that a compiler is missing."""
        return missing_inductor_tools(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module. Whether TorchInductor takes it shows when it is first called.

        Raises:
            VariantError: It cannot be pickled.
        """
        save_module(subject.module, folder)
        return {"dtype": "float32", "freezing": "on", "compiled": "in each process, for each batch size"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        """Read the module; the first call with each batch size compiles it for so many threads."""
        with torch.inference_mode(False):  # weights made in inference mode cannot be frozen
            return compiled_call(load_module(folder, device), threads)
