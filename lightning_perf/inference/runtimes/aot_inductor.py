"""TorchInductor ahead of time: a compiled library in a file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.inductor_package import load_package, require_build_tools, write_package
from lightning_perf.inference.runtimes.torch_export import export_program
from lightning_perf.inference.subject import Subject

__all__ = ["AotInductor"]


class AotInductor:
    """Exported, compiled with frozen weights, and packed: it runs without the model's class and without a compiler.

    The package is native code for the kind of processor or GPU that built it, and for torch of that version. It does
    not look at the shape of its inputs: given another one it computes nonsense, so whoever calls it has to check.
    Threads are torch's own.
    """

    name = "aot-inductor"
    summary = "torch.export and AOTInductor, float32, frozen weights: a compiled library"

    def missing(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Nothing is to run one; a compiler to build one."""
        return None

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export and compile.

        Raises:
            VariantError: A compiler is missing, or the model cannot be exported or compiled.
        """
        require_build_tools(subject.device)
        module = copy.deepcopy(subject.module).to(subject.device)
        write_package(export_program(module, subject.inputs.to(subject.device)), folder)
        return {"dtype": "float32", "freezing": "on", "batch": "dynamic"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Load the library."""
        return load_package(folder, device)
