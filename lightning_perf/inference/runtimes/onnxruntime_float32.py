"""ONNX Runtime in float32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.onnx_export import ONNX_FILE, write_onnx
from lightning_perf.inference.runtimes.onnx_session import load_session, missing_provider, require_provider
from lightning_perf.inference.runtimes.packages import package_versions, require
from lightning_perf.inference.subject import Subject

__all__ = ["OnnxRuntime"]


class OnnxRuntime:
    """The model as an ONNX file. It runs without torch, without the model's class and without a compiler."""

    name = "onnxruntime"
    summary = "ONNX Runtime, float32"

    def missing(self, device: torch.device) -> str | None:
        """Say that ONNX Runtime is not installed."""
        return missing_provider(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export the model.

        Raises:
            VariantError: A package is missing, or the model cannot be exported.
        """
        require(missing_provider(subject.device))
        require_provider(subject.device)
        write_onnx(subject, folder / ONNX_FILE)
        return {"dtype": "float32", **package_versions("onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        """Start a session with so many threads."""
        return load_session(folder / ONNX_FILE, device, threads)
