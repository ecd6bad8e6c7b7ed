"""The `torch.compile` runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lightning_perf.inference.errors import missing_compiler, missing_package, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.eager import load_module, module_call, save_module

__all__ = [
    "Compile",
    "compiled_call",
    "missing_inductor_tools",
]


MAX_SHAPES = 64
"""Batch sizes that one process may use: each is code of its own. TorchDynamo's limit is 8, beyond which it runs
uncompiled without a word."""


def missing_inductor_tools(device: torch.device) -> str | None:
    """Say which compiler TorchInductor lacks: Triton for a GPU, that of C++ for a CPU."""
    return missing_package("triton", package="triton") if device.type == "cuda" else missing_compiler()


def compiled_call(module: nn.Module, threads: int) -> Call:
    """Compile a module with its weights frozen, for each batch size when it first comes.

    Code for any batch size would do with one compilation, but TorchInductor packs no weights of convolutions then, and
    gets the memory format of int8 convolutions wrong (torch 2.15, ``_inductor/mkldnn_ir.py``).

    Freezing is a switch of the process, set while compiling: given as an option of `torch.compile` it comes after the
    weights have become arguments, which cannot be frozen any more.

    Args:
        module: The module, on its device.
        threads: CPU threads that its loops are written for.
    """
    plain = module_call(torch.compile(module, dynamic=False, options={"cpp.threads": threads}))
    seen: set[tuple[torch.Size, bool]] = set()

    def call(inputs: Tensor) -> Tensor:
        # Dimensions of size 1 may have any stride, and TorchDynamo compiles anew for each: made the usual ones.
        inputs = inputs.contiguous().view(-1).view(inputs.shape)
        kind = inputs.shape, inputs.is_inference()  # what is left of what it compiles anew for, and would unfrozen
        if kind in seen:
            return plain(inputs)
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor

        with (
            variant_errors("TorchInductor cannot compile this model"),
            inductor.patch(freezing=True),
            dynamo.patch(recompile_limit=MAX_SHAPES, fail_on_recompile_limit_hit=True),
        ):
            outputs = plain(inputs)
        seen.add(kind)
        return outputs

    return call


class Compile(Runtime):
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
