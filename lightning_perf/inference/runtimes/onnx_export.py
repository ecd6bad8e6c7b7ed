"""The model as an ONNX file for any batch size."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from lightning_perf.inference.runtimes.faults import variant_errors
from lightning_perf.inference.runtimes.packages import missing_package, require
from lightning_perf.inference.runtimes.torch_export import dynamic_batch, example_batch, tracing
from lightning_perf.inference.subject import Subject

__all__ = ["INPUT_NAME", "ONNX_FILE", "OUTPUT_NAME", "require_onnx", "weights_apart", "write_onnx"]

ONNX_FILE = "model.onnx"
INPUT_NAME = "input"
OUTPUT_NAME = "output"

PROTOBUF_LIMIT_BYTES = 2**31 - 2**26
"""A protobuf message, and so an ONNX file, ends at 2 GiB; larger weights lie in a file beside. A little is left for the
graph."""


def require_onnx() -> None:
    """Make sure that ONNX files can be written.

    Raises:
        VariantError: A package is missing.
    """
    require(*(missing_package(name, "lightning-perf[infer]") for name in ("onnx", "onnxscript")))


def weights_apart(module: torch.nn.Module) -> bool:
    """Whether the weights are too large for one file."""
    tensors = (*module.parameters(), *module.buffers())
    return sum(tensor.nbytes for tensor in tensors) > PROTOBUF_LIMIT_BYTES


def write_onnx(subject: Subject, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Export the model by torch.export.

    Args:
        subject: The model and its inputs.
        path: The file.
        dtype: Type of weights, input and output.

    Raises:
        VariantError: A package is missing, or the model cannot be exported.
    """
    require_onnx()
    with variant_errors("torch.onnx cannot export this model"), tracing():
        module = copy.deepcopy(subject.module).to(dtype)
        torch.onnx.export(
            module,
            (example_batch(subject.inputs).to(dtype),),
            str(path),
            dynamo=True,
            dynamic_shapes=dynamic_batch(),
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            external_data=weights_apart(module),
            verbose=False,
        )
