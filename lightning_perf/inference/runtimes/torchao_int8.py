"""Run a model in int8 with torchao: static quantization of an exported graph, or weight-only quantization."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import VariantError, missing_package, package_versions, quietly, variant_errors
from lightning_perf.inference.model import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.eager import Eager, module_call, save_module
from lightning_perf.inference.runtimes.export import CALIBRATION_BATCH, export_program, require_calibration, tracing
from lightning_perf.inference.runtimes.inductor import compiled_call, missing_inductor_tools

PROGRAM_FILE = "program.pt2"


class Int8Pt2e(Runtime):
    """Runs calibrated int8 weights and activations wherever oneDNN has kernels.

    Each process compiles the program, like `Compile`.

    torchao's quantizer for x86 (`X86InductorQuantizer`) chooses the operators: convolutions and linear layers, with the
    operators that fuse into them. The file contains the quantized program and does not need the model's class.
    """

    name = "int8-pt2e"
    summary = "int8 weights and activations by torchao, compiled by TorchInductor"

    def missing(self, device: torch.device) -> str | None:
        """Return why it cannot run: torchao or a compiler is missing, or the device is not a CPU."""
        if device.type != "cpu":
            return "torchao quantizes exported programs for x86 CPUs: on a GPU use tensorrt-int8"
        return missing_package("torchao", extra="infer") or missing_inductor_tools(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export, calibrate, convert and write the program, which is compiled at its first call."""
        require_calibration(subject)
        # Trace the bytecode: if traced by running, torchvision's ResNets fail in the quantizer.
        program = export_program(copy.deepcopy(subject.module), subject.inputs, strict=True)
        with variant_errors("torchao cannot quantize this model"), tracing():
            from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
            from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
                X86InductorQuantizer,
                get_default_x86_inductor_quantization_config,
            )

            quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
            prepared = prepare_pt2e(program.module(), quantizer)
            for batch in torch.split(subject.calibration, CALIBRATION_BATCH):
                prepared(batch)
            converted = convert_pt2e(prepared)
            _drop_unused_weights(converted)
            torch.export.save(export_program(converted, subject.inputs), folder / PROGRAM_FILE)
        return {
            "dtype": "int8",
            "calibration": f"{len(subject.calibration)} inputs, ranges by histogram",
            "compiled": "in each process, for each batch size",
            **package_versions("torchao"),
        }

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the program; the first call with each batch size compiles it for this number of threads."""
        path = folder / PROGRAM_FILE
        try:
            with quietly(), tracing():
                # This import defines the operators of the program and teaches TorchInductor to turn them into int8
                # kernels. Without it, the program would still compute in float32.
                import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401

                return compiled_call(torch.export.load(path).module(), threads)
        except (OSError, RuntimeError, ImportError) as error:
            raise VariantError(f"{path} cannot be loaded: {reason_of(error)}") from error


def _drop_unused_weights(module: torch.fx.GraphModule) -> None:
    """Remove the float weights that int8 weights replaced: an exported program keeps every tensor of its module."""
    used = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    for owner_name, owner in module.named_modules():
        for tensors in (owner._parameters, owner._buffers):
            for name in list(tensors):
                if ".".join(filter(None, (owner_name, name))) not in used:
                    del tensors[name]


class Int8WeightOnly(Eager):
    """Keeps the weights of linear layers in int8 and widens them for each product; convolutions stay unchanged.

    It saves memory. It saves time only if reading the weights dominates: large linear layers and small batches.
    """

    name = "int8-weight-only"
    summary = "int8 weights of linear layers by torchao, float32 activations"

    def missing(self, device: torch.device) -> str | None:  # noqa: ARG002
        return missing_package("torchao", extra="infer")

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        layers = list(subject.module.modules())
        linear = sum(isinstance(layer, nn.Linear) for layer in layers)
        convolutions = sum(isinstance(layer, nn.modules.conv._ConvNd) for layer in layers)
        if linear == 0:
            raise VariantError(
                f"torchao's weight-only int8 covers linear layers, and the model has none ({convolutions} convolutions "
                "would stay float32): use onnxruntime-int8"
            )
        with variant_errors("torchao cannot quantize this model"), tracing():
            from torchao.quantization import Int8WeightOnlyConfig, quantize_

            module = copy.deepcopy(subject.module)
            quantize_(module, Int8WeightOnlyConfig())
            for layer in module.modules():
                # torchao adds a description to each layer that cannot be pickled.
                layer.__dict__.pop("extra_repr", None)
            module_call(module)(subject.inputs[:1])
        save_module(module, folder)
        return {
            "dtype": "int8 weights, float32 activations",
            "covered": f"{linear} linear layers; {convolutions} convolutions stay float32",
            **package_versions("torchao"),
        }

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        with quietly():  # unpickling imports torchao, which prints warnings
            return super().load(folder, device, threads)
