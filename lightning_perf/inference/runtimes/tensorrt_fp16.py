"""TensorRT in float16."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.onnx_export import write_onnx
from lightning_perf.inference.runtimes.packages import package_versions, require
from lightning_perf.inference.runtimes.tensorrt_engine import (
    ENGINE_FILE,
    MAX_BATCH,
    build_engine,
    load_engine,
    missing_tensorrt,
)
from lightning_perf.inference.subject import Subject

__all__ = ["TensorRtFp16"]


class TensorRtFp16:
    """The model exported in float16, as an engine for this GPU and this version of TensorRT."""

    name = "tensorrt-fp16"
    summary = "TensorRT, float16"

    def missing(self, device: torch.device) -> str | None:
        """Say that there is no NVIDIA GPU or no TensorRT."""
        return missing_tensorrt(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export in float16 and build the engine.

        Raises:
            VariantError: A package or a GPU is missing, or the model cannot be exported or built.
        """
        require(missing_tensorrt(subject.device))
        with TemporaryDirectory() as scratch:
            model = Path(scratch, "float16.onnx")
            write_onnx(subject, model, torch.float16)
            build_engine(model, folder / ENGINE_FILE, subject.input_shape)
        return {"dtype": "float16", "max_batch": str(MAX_BATCH), **package_versions("onnx", "onnxscript", "tensorrt")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Load the engine."""
        return load_engine(folder / ENGINE_FILE, device, torch.float16)
