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

MAX_SHAPES = 64
"""Most batch sizes per process; each is compiled separately. TorchDynamo's default is 8, and beyond it runs uncompiled
without a warning."""


def missing_inductor_tools(device: torch.device) -> str | None:
    """Return which compiler TorchInductor is missing, Triton for a GPU or C++ for a CPU, or None."""
    return missing_package("triton", package="triton") if device.type == "cuda" else missing_compiler()


def compiled_call(module: nn.Module, threads: int) -> Call:
    """Compile a module with frozen weights, at the first call with each batch size.

    Code for any batch size would need one compilation only. But TorchInductor then does not pack the weights of
    convolutions, and it gets the memory format of int8 convolutions wrong (torch 2.15, ``_inductor/mkldnn_ir.py``).

    Freezing is a setting of the process and is on during compilation only. As an option of `torch.compile` it would
    come too late: the weights would already be arguments, which cannot be frozen.
    """
    plain = module_call(torch.compile(module, dynamic=False, options={"cpp.threads": threads}))
    seen: set[tuple[torch.Size, bool]] = set()

    def call(inputs: Tensor) -> Tensor:
        # Dimensions of size 1 may have any stride, and TorchDynamo recompiles for each: use the default strides.
        inputs = inputs.contiguous().view(-1).view(inputs.shape)
        # TorchDynamo recompiles, without freezing, if either of these two changes.
        kind = inputs.shape, inputs.is_inference()
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
    """Compiles the model in each process, at the first call with each batch size.

    Freezing turns weights into constants: batch norms fold into convolutions, and weights get the kernels' memory
    layout at compile time. The file is a pickle of the whole module, like the file of `Eager`.
    """

    name = "compile"
    summary = "torch.compile (TorchInductor), float32, frozen weights"

    def missing(self, device: torch.device) -> str | None:
        """Return which compiler is missing, or None."""
        return missing_inductor_tools(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module. TorchInductor compiles it at the first call, which may fail."""
        save_module(subject.module, folder)
        return {"dtype": "float32", "freezing": "on", "compiled": "in each process, for each batch size"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        """Read the module; the first call with each batch size compiles it for this number of threads."""
        with torch.inference_mode(False):  # weights made in inference mode cannot be frozen
            return compiled_call(load_module(folder, device), threads)
