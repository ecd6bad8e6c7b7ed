"""Compile a model with TorchInductor: in each process, or ahead of time into library files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import VariantError, missing_package, quietly, require, variant_errors
from lightning_perf.inference.model import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.eager import load_module, module_call, save_module
from lightning_perf.inference.runtimes.export import export_program, tracing
from lightning_perf.machine.environment import missing_cpp_compiler

MAX_SHAPES = 64
"""Most batch sizes per process; each is compiled separately. TorchDynamo's default is 8, and beyond it runs uncompiled
without a warning."""


def missing_compiler() -> str | None:
    """Return that the C++ compiler of TorchInductor is missing, or None."""
    name = missing_cpp_compiler()
    advice = "install one (apt-get install g++), or set CXX"
    return None if name is None else f"TorchInductor needs a C++ compiler, and {name} was not found: {advice}"


def missing_inductor_tools(device: torch.device) -> str | None:
    """Return which compiler TorchInductor is missing, Triton for a GPU or C++ for a CPU, or None."""
    return missing_package("triton", package="triton") if device.type == "cuda" else missing_compiler()


def compiled_call(module: nn.Module, threads: int, mode: str = "default") -> Call:
    """Compile a module with frozen weights in a mode of ``torch.compile``, at the first call with each batch size.

    Code for any batch size would need one compilation only. But TorchInductor then does not pack the weights of
    convolutions, and it gets the memory format of int8 convolutions wrong (torch 2.15, ``_inductor/mkldnn_ir.py``).

    Freezing is a setting of the process and is on during compilation only. As an option of `torch.compile` it would
    come too late: the weights would already be arguments, which cannot be frozen.
    """
    options = torch._inductor.list_mode_options(mode)
    plain = module_call(torch.compile(module, dynamic=False, options={"cpp.threads": threads, **options}))
    in_graphs = "triton.cudagraphs" in options
    seen: set[tuple[torch.Size, bool]] = set()

    def call(inputs: Tensor) -> Tensor:
        # Dimensions of size 1 may have any stride, and TorchDynamo recompiles for each: use the default strides.
        inputs = inputs.contiguous().view(-1).view(inputs.shape)
        # TorchDynamo recompiles, without freezing, if either of these two changes.
        kind = inputs.shape, inputs.is_inference()
        if kind in seen:
            # The next replay of a CUDA graph overwrites its outputs.
            return plain(inputs).clone() if in_graphs else plain(inputs)
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor
        from torch._dynamo.utils import counters

        with (
            variant_errors("TorchInductor cannot compile this model"),
            inductor.patch(freezing=True),
            dynamo.patch(recompile_limit=MAX_SHAPES, fail_on_recompile_limit_hit=True),
        ):
            skipped = counters["inductor"]["cudagraph_skips"]
            outputs = plain(inputs)
            if mode == "reduce-overhead" and counters["inductor"]["cudagraph_skips"] > skipped:
                raise VariantError(
                    "TorchInductor made no CUDA graph of this model, e.g. for work on the CPU: use compile"
                )
        seen.add(kind)
        return outputs.clone() if in_graphs else outputs

    return call


class Compile(Runtime):
    """Compiles the model in each process, at the first call with each batch size.

    Freezing turns weights into constants: batch norms fold into convolutions, and weights get the kernels' memory
    layout at compile time. The file is a pickle of the whole module, like the file of `Eager`.
    """

    name = "compile"
    summary = "torch.compile (TorchInductor), float32, frozen weights"
    mode = "default"

    def missing(self, device: torch.device) -> str | None:
        return missing_inductor_tools(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Write the module. TorchInductor compiles it at the first call, which may fail."""
        save_module(subject.module, folder)
        return {"dtype": "float32", "freezing": "on", "compiled": "in each process, for each batch size"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        """Read the module; the first call with each batch size compiles it for this number of threads."""
        with torch.inference_mode(False):  # weights made in inference mode cannot be frozen
            return compiled_call(load_module(folder, device), threads, self.mode)


class CompileReduceOverhead(Compile):
    """Compiles the model, and replays its kernels from CUDA graphs: one launch per call instead of one per kernel."""

    name = "compile-reduce-overhead"
    summary = "torch.compile with CUDA graphs, float32, frozen weights"
    mode = "reduce-overhead"

    def missing(self, device: torch.device) -> str | None:
        """Return that a processor has no CUDA graphs, or which compiler is missing, or None."""
        if device.type != "cuda":
            return f"CUDA graphs run on GPUs, not on {device.type}: use compile"
        return super().missing(device)


class CompileMaxAutotune(CompileReduceOverhead):
    """Compiles the model with the fastest of many kernels for each product, and replays them from CUDA graphs.

    The search takes minutes for each batch size.
    """

    name = "compile-max-autotune"
    summary = "torch.compile with a search for the fastest kernels and CUDA graphs, float32, frozen weights"
    mode = "max-autotune"


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
        """Export and compile the model, for one input and for any number, and check its outputs."""
        # A GPU needs the C++ compiler, too: kernels are called from C++.
        require(missing_inductor_tools(subject.device), missing_compiler())
        # With unknown batch sizes, TorchInductor gets the layout of convolutions with channels-last weights wrong.
        module = copy.deepcopy(subject.module).to(subject.device).to(memory_format=torch.contiguous_format)
        inputs = subject.inputs.to(subject.device)
        _compile(module, inputs[:1], folder / SINGLE_FILE, dynamic=False)
        _compile(module, inputs, folder / ANY_FILE, dynamic=True)
        eager, compiled = module_call(module), self.load(folder, subject.device, subject.threads)
        for batch in (inputs[:1], inputs):
            wanted, got = eager(batch), compiled(batch)
            error = float((got - wanted).abs().max() / wanted.abs().max().clamp_min(1e-12))
            if not error <= TOLERANCES[subject.device.type]:
                raise VariantError(
                    f"the library that AOTInductor compiled for a batch of {len(batch)} differs from the model by "
                    f"{error:.1%} of its largest output. This is a bug of this torch version: use onnxruntime"
                )
        return {"dtype": "float32", "freezing": "on", "batch": "one library for 1, one for any"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Load the libraries. They run native code from their author."""
        single, several = (_load(folder / name, device) for name in (SINGLE_FILE, ANY_FILE))
        return lambda inputs: single(inputs) if len(inputs) == 1 else several(inputs)


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
