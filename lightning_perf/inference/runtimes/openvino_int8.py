"""OpenVINO in int8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.onnx_export import ONNX_FILE
from lightning_perf.inference.runtimes.onnx_quantize import write_qdq_onnx
from lightning_perf.inference.runtimes.openvino_model import load_openvino, missing_openvino
from lightning_perf.inference.runtimes.packages import package_versions, require
from lightning_perf.inference.subject import Subject

__all__ = ["OpenVinoInt8"]


class OpenVinoInt8:
    """The quantized ONNX file of `OnnxRuntimeInt8`, run by OpenVINO."""

    name = "openvino-int8"
    summary = "OpenVINO, int8 weights and activations, calibrated"

    def missing(self, device: torch.device) -> str | None:
        """Say that OpenVINO is not installed, or that this is no CPU."""
        return missing_openvino(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export, calibrate and quantize; ONNX Runtime's quantizer does it.

        Raises:
            VariantError: A package or the calibration inputs are missing, or the model cannot be exported or quantized.
        """
        require(missing_openvino(subject.device))
        return {**write_qdq_onnx(subject, folder / ONNX_FILE), **package_versions("openvino")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Compile it for so many threads."""
        return load_openvino(folder / ONNX_FILE, threads)
