"""A module as a call that TorchInductor compiles in the process that runs it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.faults import variant_errors
from lightning_perf.inference.runtimes.packages import missing_compiler, missing_package
from lightning_perf.inference.runtimes.torch_module import module_call

__all__ = ["compiled_call", "missing_inductor_tools"]

MAX_SHAPES = 64
"""Batch sizes that one process may use: each is code of its own. TorchDynamo's limit is 8, beyond which it runs
uncompiled without a word."""


def missing_inductor_tools(device: torch.device) -> str | None:
    """Say which compiler TorchInductor lacks: Triton for a GPU, that of C++ for a CPU."""
    return missing_package("triton", "triton") if device.type == "cuda" else missing_compiler()


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
