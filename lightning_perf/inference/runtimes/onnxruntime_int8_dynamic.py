"""ONNX Runtime with int8 weights, and ranges of activations found in each call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.onnx_export import ONNX_FILE
from lightning_perf.inference.runtimes.onnx_quantize import write_dynamic_onnx
from lightning_perf.inference.runtimes.onnx_session import load_session, missing_provider
from lightning_perf.inference.subject import Subject

__all__ = ["OnnxRuntimeInt8Dynamic"]


class OnnxRuntimeInt8Dynamic:
    """For models of linear layers, as transformers: no calibration needed.

    Convolutions are refused: ONNX Runtime has no fast kernel for them in this scheme, and a ResNet-18 ran nine times
    slower than in float32.
    """

    name = "onnxruntime-int8-dynamic"
    summary = "ONNX Runtime, int8 weights, activations quantized in each call; no convolutions"

    def missing(self, device: torch.device) -> str | None:
        """Say that ONNX Runtime is not installed, or that this is a GPU."""
        if device.type != "cpu":
            return "ONNX Runtime quantizes activations in each call on CPUs alone: use tensorrt-int8"
        return missing_provider(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export and quantize.

        Raises:
            VariantError: The model has convolutions, a package is missing, or it cannot be exported or quantized.
        """
        convolutions = sum(isinstance(layer, nn.modules.conv._ConvNd) for layer in subject.module.modules())
        if convolutions:
            raise VariantError(
                f"the model has {convolutions} convolutions, which are many times slower with ranges found in each "
                "call: use onnxruntime-int8"
            )
        return write_dynamic_onnx(subject, folder / ONNX_FILE)

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        """Start a session with so many threads."""
        return load_session(folder / ONNX_FILE, device, threads)
