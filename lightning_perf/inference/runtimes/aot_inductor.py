"""Compile a model ahead of time with TorchInductor into library files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import VariantError, missing_compiler, quietly, require, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.compiled import missing_inductor_tools
from lightning_perf.inference.runtimes.eager import module_call
from lightning_perf.inference.runtimes.torch_export import export_program, tracing

SINGLE_FILE = "batch-1.pt2"
ANY_FILE = "batch-n.pt2"

TOLERANCES = {"cpu": 1e-3, "cuda": 0.02}
"""Largest allowed difference from the module, relative to the largest output, by type of device. On a CPU, sums in
another order stay well below it. On a GPU, convolutions round their inputs to TF32, with 10 bits, and folded batch
norms change these inputs. A library that gets a memory layout wrong differs by as much as its outputs."""


class AotInductor(Runtime):
    """Exports and compiles the model with frozen weights; it then runs without its class and without a compiler.

    There are two libraries, each with the weights: one for single inputs and one for all other batch sizes.
    TorchInductor packs the weights of convolutions only if the batch size is known. With a ResNet-18 on images of 64
    pixels, single inputs ran at 3.0 times the speed of eager in the first library and at 1.2 times in the second.

    The libraries are native code for the type of processor or GPU that built them, and for that version of torch. They
    do not check the shape of their inputs and compute nonsense for a wrong one, so the caller has to check it. The
    number of threads is torch's own.
    """

    name = "aot-inductor"
    summary = "torch.export and AOTInductor, float32, frozen weights: compiled libraries"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export and compile the model, for one input and for any number.

        Raises:
            VariantError: A compiler is missing, the model cannot be exported or compiled, or the compiled model gives
                other outputs.
        """
        require(
            missing_inductor_tools(subject.device), missing_compiler()
        )  # on a GPU, too: kernels are called from C++
        # With unknown batch sizes, TorchInductor gets the layout of convolutions with channels-last weights wrong.
        module = copy.deepcopy(subject.module).to(subject.device).to(memory_format=torch.contiguous_format)
        inputs = subject.inputs.to(subject.device)
        _compile(module, inputs[:1], folder / SINGLE_FILE, dynamic=False)
        _compile(module, inputs, folder / ANY_FILE, dynamic=True)
        _require_agreement(self.load(folder, subject.device, subject.threads), module, inputs)
        return {"dtype": "float32", "freezing": "on", "batch": "one library for 1, one for any"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Load the libraries. They run native code from their author."""
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
            # Without this option, the loops use the number of threads of the building process.
            inductor_configs={"freezing": True, "cpp.dynamic_threads": True},
        )


def _load(path: Path, device: torch.device) -> Call:
    if not path.is_file():
        raise VariantError(f"{path} is missing: copy the whole folder, or export the variant again")
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
                f"the library that AOTInductor compiled for a batch of {len(batch)} differs from the model by "
                f"{error:.1%} of its largest output. This is a bug of this torch version: use onnxruntime"
            )
