"""TorchInductor by `torch.compile`, with frozen weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.faults import variant_errors
from lightning_perf.inference.runtimes.packages import missing_compiler, missing_package
from lightning_perf.inference.runtimes.torch_module import load_module, module_call, save_module
from lightning_perf.inference.subject import Subject

__all__ = ["Compile"]


class Compile:
    """Compiled when first called, in each process anew, and again for a second batch size; later sizes share code.

    Freezing makes weights constants, so that batch norms fold into convolutions and weights are laid out for the
    kernels beforehand. The file is a pickle of the whole module, as `Eager`'s.
    """

    name = "compile"
    summary = "torch.compile (TorchInductor), float32, frozen weights"

    def missing(self, device: torch.device) -> str | None:
        """Say that there is no C++ compiler or, on a GPU, no Triton."""
        if device.type == "cuda":
            return missing_package("triton", "triton")
        return missing_compiler()

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module, and compile it once to know that it can be.

        Raises:
            VariantError: TorchInductor does not take it.
        """
        save_module(subject.module, folder)
        self.load(folder, subject.device, subject.threads)(subject.inputs[:1].to(subject.device))
        return {"dtype": "float32", "freezing": "on", "compiled": "at the first call in each process"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        """Read the module; the first call compiles it for so many threads."""
        with torch.inference_mode(False):  # freezing does not take weights that were made in inference mode
            module = load_module(folder, device)
        compiled = torch.compile(module, options={"freezing": True, "cpp.threads": threads})
        seen: set[torch.Size] = set()
        plain = module_call(compiled)

        def call(inputs: Tensor) -> Tensor:
            if inputs.shape in seen:
                return plain(inputs)
            with variant_errors("TorchInductor cannot compile this model"):
                outputs = plain(inputs)
            seen.add(inputs.shape)
            return outputs

        return call
