"""Export models as graphs, with torch.export or as ONNX files, and quantize ONNX files."""

from __future__ import annotations

import contextlib
import copy
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_perf.inference.errors import VariantError, missing_package, package_versions, require, variant_errors
from lightning_perf.inference.model import Subject
from lightning_perf.machine.processor import cpu_flags

if TYPE_CHECKING:
    from torch.export import ExportedProgram

CALIBRATION_BATCH = 32
"""Inputs per batch. It limits memory and does not affect the ranges."""


def require_calibration(subject: Subject) -> None:
    """Check for calibration inputs."""
    if len(subject.calibration) == 0:
        raise VariantError("int8 needs real training inputs for calibration: give a LightningDataModule as --data")


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Disable gradients and leave inference mode: tensors made in inference mode cannot be traced."""
    with torch.inference_mode(False), torch.no_grad():  # in this order: the first one turns gradients on
        yield


def _any_batch(inputs: Tensor) -> tuple[Tensor, tuple[dict[int, object]]]:
    """Return two inputs for tracing, and ``dynamic_shapes`` by which the batch may have any size.

    torch.export would treat a batch of one as a constant ("0/1 specialization").
    """
    return inputs[torch.arange(2, device=inputs.device) % len(inputs)], ({0: torch.export.Dim("batch")},)


def export_program(module: nn.Module, inputs: Tensor, *, dynamic: bool = True, strict: bool = False) -> ExportedProgram:
    """Export a model for any batch size, or only for the batch size of the inputs."""
    with variant_errors("torch.export cannot take this model"), tracing():
        example, shapes = _any_batch(inputs) if dynamic else (inputs, None)
        return torch.export.export(module, (example,), dynamic_shapes=shapes, strict=strict)


ONNX_FILE = "model.onnx"
INPUT_NAME = "input"
OUTPUT_NAME = "output"

PROTOBUF_LIMIT_BYTES = 2**31 - 2**26
"""Largest size of weights inside an ONNX file: a protobuf message is limited to 2 GiB, and the graph needs some of it.
Larger weights go into a separate file."""


def _require_packages(*names: str) -> None:
    require(*(missing_package(name, extra="infer") for name in names))


def weights_apart(module: nn.Module) -> bool:
    """Say whether the weights are too large for one file."""
    tensors = (*module.parameters(), *module.buffers())
    return sum(tensor.nbytes for tensor in tensors) > PROTOBUF_LIMIT_BYTES


def write_onnx(subject: Subject, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Export the model as an ONNX file, with torch.export."""
    _require_packages("onnx", "onnxscript")
    with variant_errors("torch.onnx cannot export this model"), tracing():
        module = copy.deepcopy(subject.module).to(dtype)
        example, shapes = _any_batch(subject.inputs.to(dtype))
        torch.onnx.export(
            module,
            (example,),
            str(path),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            external_data=weights_apart(module),
            verbose=False,
        )


VNNI_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})


TENSORRT_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")

TENSORRT_OPTIONS = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "AddQDQPairToWeight": True,
    "DedicatedQDQPair": True,
    "QuantizeBias": False,
}
"""Options of the quantizer for TensorRT (NVIDIA TensorRT developer guide, "Working with quantized types"). All zero
points are 0, biases are float, and each weight has its own quantize-dequantize pair."""


def write_qdq_onnx(subject: Subject, path: Path, *, for_tensorrt: bool = False) -> Mapping[str, str]:
    """Export the model, run the calibration inputs, and write it with quantize-dequantize pairs.

    Weights are int8, scaled per output channel. Activations are uint8 with fitted zero points, the pair that x86's VNNI
    multiplies (onnxruntime.ai, "Quantize ONNX models"), or int8 for TensorRT. They use the whole observed range
    (min-max), which needs no histograms; ``benchmarks/models/int8.py`` compares it with percentiles and minimum
    entropy. Returns the settings that affect the result.
    """
    _require_packages("onnx", "onnxscript", "onnxruntime")
    require_calibration(subject)
    with TemporaryDirectory() as scratch:
        plain, prepared = Path(scratch, "float.onnx"), Path(scratch, "prepared.onnx")
        write_onnx(subject, plain)
        apart = weights_apart(subject.module)
        narrow = not for_tensorrt and _saturates()
        with variant_errors("ONNX Runtime cannot quantize this model"):
            from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
            from onnxruntime.quantization.shape_inference import quant_pre_process

            quant_pre_process(plain, prepared, save_as_external_data=apart)
            quantize_static(
                prepared,
                path,
                calibration_reader(subject.calibration),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=TENSORRT_OPERATORS if for_tensorrt else None,
                per_channel=True,
                reduce_range=narrow,
                activation_type=QuantType.QInt8 if for_tensorrt else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                use_external_data_format=apart,
                calibrate_method=CalibrationMethod.MinMax,
                extra_options=TENSORRT_OPTIONS if for_tensorrt else {},
            )
    return {
        "weights": _weights(narrow),
        "activations": "int8, zero points 0" if for_tensorrt else "uint8",
        "calibration": f"{len(subject.calibration)} inputs, min-max",
        **package_versions("onnx", "onnxscript", "onnxruntime"),
    }


def write_dynamic_onnx(subject: Subject, path: Path) -> Mapping[str, str]:
    """Export the model, and write it with int8 weights; each call finds the ranges of its activations."""
    _require_packages("onnx", "onnxscript", "onnxruntime")
    with TemporaryDirectory() as scratch:
        plain = Path(scratch, "float.onnx")
        write_onnx(subject, plain)
        narrow = _saturates()
        with variant_errors("ONNX Runtime cannot quantize this model"):
            import onnx
            from onnxruntime.quantization import QuantType, quantize_dynamic

            model = onnx.load(plain)
            # The quantizer transposes weights of Gemm; the shapes that the exporter recorded would then be wrong.
            del model.graph.value_info[:]
            quantize_dynamic(
                model,
                path,
                op_types_to_quantize=["MatMul", "Gemm", "Attention", "LSTM", "Gather"],
                per_channel=True,
                reduce_range=narrow,
                weight_type=QuantType.QInt8,
                use_external_data_format=weights_apart(subject.module),
            )
    return {
        "weights": _weights(narrow),
        "activations": "uint8, ranges found in each call",
        **package_versions("onnx", "onnxscript", "onnxruntime"),
    }


def _weights(narrow: bool) -> str:
    return "int8 per channel" + (", 7 bits: this processor has no VNNI" if narrow else "")


def _saturates() -> bool:
    """Say whether 16-bit sums of uint8 × int8 products can overflow: x86 without VNNI adds them with ``vpmaddubsw``.

    Weights of 7 bits keep such sums in range (onnxruntime.ai, "Quantize ONNX models", ``reduce_range``).
    """
    flags = cpu_flags()
    return platform.machine() in {"x86_64", "AMD64"} and flags is not None and not flags & VNNI_FLAGS


def calibration_reader(calibration: Tensor) -> Any:
    """Return a reader of the calibration inputs ``(n, …)`` for ONNX Runtime's quantizer."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches: Iterator[Tensor] = iter(torch.split(calibration, CALIBRATION_BATCH))

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self._batches, None)
            return None if batch is None else {INPUT_NAME: batch.numpy()}

    return Reader()
