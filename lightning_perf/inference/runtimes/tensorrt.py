"""Build and run TensorRT engines in FP16 and int8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from lightning_perf.inference.errors import VariantError, missing_package, package_versions, variant_errors
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.export import INPUT_NAME, OUTPUT_NAME, write_onnx, write_qdq_onnx

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
    input_dtype = torch.float16

    def missing(self, device: torch.device) -> str | None:
        """Return why TensorRT cannot run: the device is not an NVIDIA GPU, or TensorRT is not installed."""
        if device.type != "cuda" or torch.version.cuda is None:
            return f"TensorRT runs on NVIDIA GPUs, not on {device.type}"
        return missing_package("tensorrt", package="tensorrt")

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        with TemporaryDirectory() as scratch:
            model = Path(scratch, "model.onnx")
            settings = self._write_onnx(subject, model)
            build_engine(model, folder / ENGINE_FILE, subject.input_shape)
        return {**settings, "max_batch": str(MAX_BATCH), **package_versions("onnx", "onnxscript", "tensorrt")}

    def _write_onnx(self, subject: Subject, path: Path) -> Mapping[str, str]:
        write_onnx(subject, path, torch.float16)
        return {"dtype": "float16"}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        return load_engine(folder / ENGINE_FILE, device, self.input_dtype)


class TensorRtInt8(TensorRtFp16):
    """Runs the model with calibrated int8 weights and activations.

    ONNX Runtime's quantizer finds the ranges on the CPU, because TensorRT 11 has no calibrators.
    """

    name = "tensorrt-int8"
    summary = "TensorRT, int8 weights and activations, calibrated"
    input_dtype = torch.float32

    def _write_onnx(self, subject: Subject, path: Path) -> Mapping[str, str]:
        return write_qdq_onnx(subject, path, for_tensorrt=True)
