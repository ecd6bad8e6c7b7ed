"""TorchInductor ahead of time: compiled libraries in files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lightning_perf.inference.errors import VariantError, missing_compiler, quietly, reason_of, require, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.compiled import missing_inductor_tools
from lightning_perf.inference.runtimes.eager import module_call
from lightning_perf.inference.runtimes.torch_export import export_program, tracing

__all__ = ["AotInductor"]

SINGLE_FILE = "batch-1.pt2"
ANY_FILE = "batch-n.pt2"

TOLERANCES = {"cpu": 1e-3, "cuda": 0.02}
"""Largest difference to the module, relative to the largest output, by the type of device. Other orders of sums stay
well below the first; on GPUs convolutions round their inputs to TF32, of 10 bits, and folded batch norms change what is
rounded. A library that mistakes a memory layout differs by as much as its outputs."""


class AotInductor(Runtime):
    """Exported, compiled with frozen weights, and packed: it runs without the model's class and without a compiler.

    There are two libraries, each with the weights: one for single inputs and one for all other batch sizes. For a batch
    of known size TorchInductor packs the weights of convolutions, for an unknown one it does not: on a ResNet-18 of 64
    pixels, single inputs ran at 3.0 and at 1.2 times the speed of eager.

    They are native code for the kind of processor or GPU that built them, and for torch of that version. They do not
    look at the shape of their inputs: given another one they compute nonsense, so whoever calls them has to check.
    Threads are torch's own.
    """

    name = "aot-inductor"
    summary = "torch.export and AOTInductor, float32, frozen weights: compiled libraries"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export and compile, for one input and for any number.

        Raises:
            VariantError: A compiler is missing, the model cannot be exported or compiled, or what was compiled computes
                something else.
        """
        require(missing_inductor_tools(subject.device), missing_compiler())  # C++ is around the kernels of GPUs, too
        # For unknown batch sizes TorchInductor mistakes the layout of convolutions whose weights have channels last.
        module = copy.deepcopy(subject.module).to(subject.device).to(memory_format=torch.contiguous_format)
        inputs = subject.inputs.to(subject.device)
        _compile(module, inputs[:1], folder / SINGLE_FILE, dynamic=False)
        _compile(module, inputs, folder / ANY_FILE, dynamic=True)
        _require_agreement(self.load(folder, subject.device, subject.threads), module, inputs)
        return {"dtype": "float32", "freezing": "on", "batch": "a library for 1, a library for any"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Load the libraries. They hold native code of whoever wrote them."""
        single, several = (_load(folder / name, device) for name in (SINGLE_FILE, ANY_FILE))

        def call(inputs: Tensor) -> Tensor:
            return single(inputs) if len(inputs) == 1 else several(inputs)

        return call


def _compile(module: nn.Module, inputs: Tensor, path: Path, *, dynamic: bool) -> None:
    program = export_program(module, inputs, dynamic=dynamic)
    with variant_errors("AOTInductor cannot compile this model"), tracing():
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(path),
            # Otherwise the loops are written for the builder's number of threads.
            inductor_configs={"freezing": True, "cpp.dynamic_threads": True},
        )


def _load(path: Path, device: torch.device) -> Call:
    if not path.is_file():
        raise VariantError(f"{path} is missing")
    index = -1 if device.type == "cpu" else device.index if device.index is not None else torch.cuda.current_device()
    try:
        with quietly():
            return module_call(torch._inductor.aoti_load_package(str(path), device_index=index))
    except (RuntimeError, OSError) as error:
        raise VariantError(f"{path} cannot be loaded: {reason_of(error)}") from error


def _require_agreement(call: Call, module: nn.Module, inputs: Tensor) -> None:
    eager = module_call(module)
    for batch in (inputs[:1], inputs):
        wanted, got = eager(batch), call(batch)
        error = float((got - wanted).abs().max() / wanted.abs().max().clamp_min(1e-12))
        if not error <= TOLERANCES[inputs.device.type]:
            raise VariantError(
                f"what AOTInductor compiled for a batch of {len(batch)} differs from the model by {error:.1%} of its "
                "largest output: a fault of this torch version; use onnxruntime"
            )
