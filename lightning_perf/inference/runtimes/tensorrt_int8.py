"""TensorRT in int8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.onnx_quantize import FOR_TENSORRT, write_qdq_onnx
from lightning_perf.inference.runtimes.packages import package_versions, require
from lightning_perf.inference.runtimes.tensorrt_engine import (
    ENGINE_FILE,
    MAX_BATCH,
    build_engine,
    load_engine,
    missing_tensorrt,
)
from lightning_perf.inference.subject import Subject

__all__ = ["TensorRtInt8"]


class TensorRtInt8:
    """The model with int8 weights and activations, calibrated, as an engine for this GPU and this version of TensorRT.

    ONNX Runtime's quantizer finds the ranges, on the CPU: TensorRT 11 has no calibrators.
    """

    name = "tensorrt-int8"
    summary = "TensorRT, int8 weights and activations, calibrated"

    def missing(self, device: torch.device) -> str | None:
        """Say that there is no NVIDIA GPU or no TensorRT."""
        return missing_tensorrt(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export, calibrate, quantize and build the engine.

        Raises:
            VariantError: A package, a GPU or the calibration inputs are missing, or the model cannot be exported,
                quantized or built.
        """
        require(missing_tensorrt(subject.device))
        with TemporaryDirectory() as scratch:
            model = Path(scratch, "int8.onnx")
            settings = write_qdq_onnx(subject, model, FOR_TENSORRT)
            build_engine(model, folder / ENGINE_FILE, subject.input_shape)
        return {**settings, "max_batch": str(MAX_BATCH), **package_versions("tensorrt")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Load the engine."""
        return load_engine(folder / ENGINE_FILE, device, torch.float32)
