"""ONNX Runtime in int8, with ranges of activations found beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.onnx_export import ONNX_FILE
from lightning_perf.inference.runtimes.onnx_quantize import write_qdq_onnx
from lightning_perf.inference.runtimes.onnx_session import load_session, missing_provider
from lightning_perf.inference.subject import Subject

__all__ = ["OnnxRuntimeInt8"]


class OnnxRuntimeInt8:
    """Weights and activations in int8, calibrated on real inputs. No compiler is needed to build or run it."""

    name = "onnxruntime-int8"
    summary = "ONNX Runtime, int8 weights and activations, calibrated"

    def missing(self, device: torch.device) -> str | None:
        """Say that ONNX Runtime is not installed, or that this is a GPU."""
        if device.type != "cpu":
            return "ONNX Runtime's CUDA kernels do not compute convolutions in int8: use tensorrt-int8"
        return missing_provider(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export, calibrate and quantize.

        Raises:
            VariantError: A package or the calibration inputs are missing, or the model cannot be exported or quantized.
        """
        return write_qdq_onnx(subject, folder / ONNX_FILE)

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        """Start a session with so many threads."""
        return load_session(folder / ONNX_FILE, device, threads)
