"""Run a model in OpenVINO, in FP32 and int8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import (
    VariantError,
    missing_package,
    package_versions,
    require,
    variant_errors,
)
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.onnx_files import ONNX_FILE, write_onnx, write_qdq_onnx


def load_openvino(path: Path, threads: int) -> Call:
    """Compile an ONNX file for one request at a time on a number of threads.

    Float32 operations stay float32; by default OpenVINO would use bfloat16 on processors that have it.
    """
    with variant_errors(f"OpenVINO cannot load {path.name}"):
        import openvino

        core = openvino.Core()
        compiled = core.compile_model(
            core.read_model(path),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": 1,
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32",
            },
        )
        request = compiled.create_infer_request()

    def call(inputs: Tensor) -> Tensor:
        try:
            # Copy the outputs: the request will write the next ones to the same memory.
            results = request.infer([inputs.detach().contiguous().numpy()], share_inputs=True, share_outputs=False)
        except RuntimeError as error:
            raise VariantError(f"OpenVINO: {reason_of(error)}") from error
        return torch.from_numpy(results[0])

    return call


class OpenVino(Runtime):
    """Runs the ONNX file of `OnnxRuntime` in OpenVINO, on x86 and Arm CPUs."""

    name = "openvino"
    summary = "OpenVINO, float32"

    def missing(self, device: torch.device) -> str | None:
        """Return why OpenVINO cannot run: it is not installed, or the device is not a CPU."""
        if device.type != "cpu":
            return f"lightning-perf uses OpenVINO on CPUs only, not on {device.type}"
        return missing_package("openvino", extra="openvino")

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export the model.

        Raises:
            VariantError: A package is missing, or the model cannot be exported.
        """
        require(self.missing(subject.device))
        write_onnx(subject, folder / ONNX_FILE)
        return {"dtype": "float32", **package_versions("onnx", "onnxscript", "openvino")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Compile the file for this number of threads."""
        return load_openvino(folder / ONNX_FILE, threads)


class OpenVinoInt8(OpenVino):
    """Runs the quantized ONNX file of `OnnxRuntimeInt8` in OpenVINO."""

    name = "openvino-int8"
    summary = "OpenVINO, int8 weights and activations, calibrated"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export, calibrate and quantize with ONNX Runtime's quantizer.

        Raises:
            VariantError: A package or the calibration inputs are missing, or the model cannot be exported or quantized.
        """
        require(self.missing(subject.device))
        return {**write_qdq_onnx(subject, folder / ONNX_FILE), **package_versions("openvino")}
