"""An ONNX file as a call, by OpenVINO."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.faults import reason_of, variant_errors
from lightning_perf.inference.runtimes.packages import missing_package

__all__ = ["load_openvino", "missing_openvino"]


def missing_openvino(device: torch.device) -> str | None:
    """Say that OpenVINO is not installed, or that it does not run there."""
    if device.type != "cpu":
        return f"OpenVINO is used on CPUs here, not on {device.type}"
    return missing_package("openvino", "lightning-perf[openvino]")


def load_openvino(path: Path, threads: int) -> Call:
    """Compile an ONNX file for one request at a time on so many threads.

    What is float32 stays float32: by itself OpenVINO takes bfloat16 on processors that have it.

    Raises:
        VariantError: It cannot be loaded here.
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
            # Outputs are copied: the request writes its next ones to the same memory.
            results = request.infer([inputs.detach().contiguous().numpy()], share_inputs=True, share_outputs=False)
        except RuntimeError as error:
            raise VariantError(f"OpenVINO: {reason_of(error)}") from error
        return torch.from_numpy(results[0])

    return call
