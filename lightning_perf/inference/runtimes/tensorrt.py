"""Build and run TensorRT engines in FP16 and int8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from lightning_perf.inference.errors import VariantError, missing_package, package_versions, require, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.onnx_files import (
    INPUT_NAME,
    OUTPUT_NAME,
    write_onnx,
    write_qdq_onnx,
)

ENGINE_FILE = "model.engine"

MAX_BATCH = 64
"""Largest batch of an engine; larger batches run in parts."""

OPTIMAL_BATCH = 8
"""Batch size that TensorRT times its kernels with."""

WORKSPACE_BYTES = 2**32


def build_engine(model: Path, engine: Path, input_shape: tuple[int, ...]) -> None:
    """Build an engine from an ONNX file, for this GPU and this version of TensorRT.

    The network is strongly typed: each layer computes in its type in the file. TensorRT 11 supports nothing else
    (builder flags for types and calibrators were removed); TensorRT 10 needs a flag for it.

    Args:
        input_shape: Shape of one input, without the batch.
    """
    with variant_errors("TensorRT cannot build an engine"):
        import tensorrt

        logger = tensorrt.Logger(tensorrt.Logger.ERROR)
        builder = tensorrt.Builder(logger)
        network = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = tensorrt.OnnxParser(network, logger)
        if not parser.parse_from_file(str(model)):
            faults = "; ".join(str(parser.get_error(index).desc()) for index in range(parser.num_errors))
            raise VariantError(f"TensorRT {tensorrt.__version__} cannot read the model: {faults}")
        config = builder.create_builder_config()
        config.set_memory_pool_limit(tensorrt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
        profile = builder.create_optimization_profile()
        profile.set_shape(INPUT_NAME, (1, *input_shape), (OPTIMAL_BATCH, *input_shape), (MAX_BATCH, *input_shape))
        config.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise VariantError(f"TensorRT {tensorrt.__version__} has no kernels for the model")
        engine.write_bytes(bytes(plan))


def load_engine(path: Path, device: torch.device, dtype: torch.dtype) -> Call:
    """Load an engine. It contains native code from its author.

    The engine runs on a stream of its own; this stream and the caller's stream wait for each other. On the default
    stream, TensorRT would synchronize with the device in every call. Its warnings are printed.
    """
    with variant_errors(f"TensorRT cannot load {path.name}"):
        import tensorrt

        runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING))
        with torch.cuda.device(device):
            engine = runtime.deserialize_cuda_engine(path.read_bytes())
            if engine is None:
                raise VariantError(
                    f"{path.name} was built for another GPU, or by another version of TensorRT than "
                    f"{tensorrt.__version__}: build it again on this machine"
                )
            context = engine.create_execution_context()
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def call(inputs: Tensor) -> Tensor:
        with torch.cuda.device(device), torch.inference_mode():
            parts = [_execute(context, part, stream) for part in torch.split(inputs.to(dtype).contiguous(), MAX_BATCH)]
            return (parts[0] if len(parts) == 1 else torch.cat(parts)).float()

    return call


def _execute(context: Any, inputs: Tensor, stream: torch.cuda.Stream) -> Tensor:
    # Both tensors belong to the caller's stream. It waits at the end, so that their memory is not reused too early.
    callers = torch.cuda.current_stream(inputs.device)
    context.set_input_shape(INPUT_NAME, tuple(inputs.shape))
    outputs = torch.empty(tuple(context.get_tensor_shape(OUTPUT_NAME)), dtype=inputs.dtype, device=inputs.device)
    context.set_tensor_address(INPUT_NAME, inputs.data_ptr())
    context.set_tensor_address(OUTPUT_NAME, outputs.data_ptr())
    stream.wait_stream(callers)
    if not context.execute_async_v3(stream.cuda_stream):
        raise VariantError("TensorRT could not run the engine")
    callers.wait_stream(stream)
    return outputs


class TensorRtFp16(Runtime):
    """Runs the model in float16, as an engine for this GPU and this version of TensorRT."""

    name = "tensorrt-fp16"
    summary = "TensorRT, float16"

    def missing(self, device: torch.device) -> str | None:
        """Return why TensorRT cannot run: the device is not an NVIDIA GPU, or TensorRT is not installed."""
        if device.type != "cuda" or torch.version.cuda is None:
            return f"TensorRT runs on NVIDIA GPUs, not on {device.type}"
        return missing_package("tensorrt", package="tensorrt")

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export in float16 and build the engine.

        Raises:
            VariantError: A package or a GPU is missing, or the model cannot be exported or built.
        """
        require(self.missing(subject.device))
        with TemporaryDirectory() as scratch:
            model = Path(scratch, "float16.onnx")
            write_onnx(subject, model, torch.float16)
            build_engine(model, folder / ENGINE_FILE, subject.input_shape)
        return {"dtype": "float16", "max_batch": str(MAX_BATCH), **package_versions("onnx", "onnxscript", "tensorrt")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Load the engine."""
        return load_engine(folder / ENGINE_FILE, device, torch.float16)


class TensorRtInt8(TensorRtFp16):
    """Runs the model with calibrated int8 weights and activations, as an engine for this GPU and version of TensorRT.

    ONNX Runtime's quantizer finds the ranges on the CPU, because TensorRT 11 has no calibrators.
    """

    name = "tensorrt-int8"
    summary = "TensorRT, int8 weights and activations, calibrated"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export, calibrate, quantize and build the engine.

        Raises:
            VariantError: A package, a GPU or the calibration inputs are missing, or the model cannot be exported,
                quantized or built.
        """
        require(self.missing(subject.device))
        with TemporaryDirectory() as scratch:
            model = Path(scratch, "int8.onnx")
            settings = write_qdq_onnx(subject, model, for_tensorrt=True)
            build_engine(model, folder / ENGINE_FILE, subject.input_shape)
        return {**settings, "max_batch": str(MAX_BATCH), **package_versions("tensorrt")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Load the engine."""
        return load_engine(folder / ENGINE_FILE, device, torch.float32)
