"""An ONNX file as a TensorRT engine, and an engine as a call. Written for TensorRT 10 and 11."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.faults import variant_errors
from lightning_perf.inference.runtimes.onnx_export import INPUT_NAME, OUTPUT_NAME
from lightning_perf.inference.runtimes.packages import missing_package

__all__ = ["ENGINE_FILE", "MAX_BATCH", "build_engine", "load_engine", "missing_tensorrt"]

ENGINE_FILE = "model.engine"

MAX_BATCH = 64
"""The largest batch that an engine is laid out for; larger ones run in parts."""

OPTIMAL_BATCH = 8
"""The batch that kernels are timed with."""

WORKSPACE_BYTES = 2**32


def missing_tensorrt(device: torch.device) -> str | None:
    """Say that there is no NVIDIA GPU or no TensorRT."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"TensorRT runs on NVIDIA GPUs, not on {device.type}"
    return missing_package("tensorrt", "tensorrt")


def build_engine(model: Path, engine: Path, input_shape: tuple[int, ...]) -> None:
    """Build an engine for this GPU and this TensorRT from an ONNX file.

    The network is strongly typed: each layer computes in the type that the file says. TensorRT 11 knows nothing else
    (builder flags for types and calibrators were removed), TensorRT 10 does the same when told.

    Args:
        model: The ONNX file.
        engine: The file to write.
        input_shape: Shape of one input, without the batch.

    Raises:
        VariantError: TensorRT does not take the model.
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
            raise VariantError(f"TensorRT {tensorrt.__version__} found no kernels for the model")
        engine.write_bytes(bytes(plan))


def load_engine(path: Path, device: torch.device, dtype: torch.dtype) -> Call:
    """Load an engine. It holds native code of whoever built it.

    Args:
        path: The file.
        device: The GPU; of the kind that it was built on.
        dtype: Type of its input and output.

    Raises:
        VariantError: It was built for another GPU or by another TensorRT.
    """
    with variant_errors(f"TensorRT cannot load {path.name}"):
        import tensorrt

        runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
        with torch.cuda.device(device):
            engine = runtime.deserialize_cuda_engine(path.read_bytes())
            if engine is None:
                raise VariantError(
                    f"{path.name} was built for another GPU or by another TensorRT than {tensorrt.__version__}: "
                    "build it again here"
                )
            context = engine.create_execution_context()

    def call(inputs: Tensor) -> Tensor:
        with torch.cuda.device(device), torch.inference_mode():
            parts = [_execute(context, part) for part in torch.split(inputs.to(dtype).contiguous(), MAX_BATCH)]
            return (parts[0] if len(parts) == 1 else torch.cat(parts)).float()

    return call


def _execute(context: Any, inputs: Tensor) -> Tensor:
    context.set_input_shape(INPUT_NAME, tuple(inputs.shape))
    outputs = torch.empty(tuple(context.get_tensor_shape(OUTPUT_NAME)), dtype=inputs.dtype, device=inputs.device)
    context.set_tensor_address(INPUT_NAME, inputs.data_ptr())
    context.set_tensor_address(OUTPUT_NAME, outputs.data_ptr())
    if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
        raise VariantError("TensorRT could not run the engine")
    return outputs
