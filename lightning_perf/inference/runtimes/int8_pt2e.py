"""int8 for TorchInductor: torchao's quantization of an exported program."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.calibration import CALIBRATION_BATCH, require_calibration
from lightning_perf.inference.runtimes.faults import variant_errors
from lightning_perf.inference.runtimes.inductor_package import load_package, require_build_tools, write_package
from lightning_perf.inference.runtimes.packages import missing_package, package_versions, require
from lightning_perf.inference.runtimes.torch_export import export_program, tracing
from lightning_perf.inference.subject import Subject

__all__ = ["Int8Pt2e"]


class Int8Pt2e:
    """Weights and activations in int8 where oneDNN has kernels, calibrated, compiled by AOTInductor.

    What is quantized is torchao's choice for x86 (`X86InductorQuantizer`): convolutions and linear layers with what
    fuses into them. The package runs without torchao and without a compiler.
    """

    name = "int8-pt2e"
    summary = "int8 weights and activations by torchao, compiled by AOTInductor"

    def missing(self, device: torch.device) -> str | None:
        """Say that it runs on CPUs alone."""
        if device.type != "cpu":
            return "torchao quantizes exported programs for x86 CPUs: on a GPU use tensorrt-int8"
        return None

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export, calibrate, convert and compile.

        Raises:
            VariantError: torchao or a compiler is missing, or the model cannot be exported, quantized or compiled.
        """
        require(missing_package("torchao", "lightning-perf[infer]"))
        require_build_tools(subject.device)
        require_calibration(subject)
        # Traced by bytecode: traced by running, torchvision's ResNets fail in the quantizer.
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
        quantized = export_program(converted, subject.inputs)
        write_package(quantized, folder)
        layers = sum("quantize_per_tensor" in str(node.target) for node in quantized.graph.nodes)
        return {
            "dtype": "int8",
            "calibration": f"{len(subject.calibration)} inputs, ranges by histogram",
            "quantized_tensors": str(layers),
            **package_versions("torchao"),
        }

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Load the library."""
        return load_package(folder, device)
