"""OpenVINO in float32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.onnx_export import ONNX_FILE, write_onnx
from lightning_perf.inference.runtimes.openvino_model import load_openvino, missing_openvino
from lightning_perf.inference.runtimes.packages import package_versions, require
from lightning_perf.inference.subject import Subject

__all__ = ["OpenVino"]


class OpenVino:
    """The ONNX file of `OnnxRuntime`, run by OpenVINO on x86 and Arm CPUs."""

    name = "openvino"
    summary = "OpenVINO, float32"

    def missing(self, device: torch.device) -> str | None:
        """Say that OpenVINO is not installed, or that this is no CPU."""
        return missing_openvino(device)

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export the model.

        Raises:
            VariantError: A package is missing, or the model cannot be exported.
        """
        require(missing_openvino(subject.device))
        write_onnx(subject, folder / ONNX_FILE)
        return {"dtype": "float32", **package_versions("onnx", "onnxscript", "openvino")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Compile it for so many threads."""
        return load_openvino(folder / ONNX_FILE, threads)
