"""Run a model from an ONNX file: in ONNX Runtime, OpenVINO or TensorRT, in FP32, FP16 or int8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import VariantError, missing_package, package_versions, variant_errors
from lightning_perf.inference.model import Subject
from lightning_perf.inference.runtimes.base import Call, Runtime
from lightning_perf.inference.runtimes.export import (
    INPUT_NAME,
    ONNX_FILE,
    OUTPUT_NAME,
    write_dynamic_onnx,
    write_onnx,
    write_qdq_onnx,
)

_QUIET = 3
"""ONNX Runtime's severity ``ERROR``; its warnings are for its own developers."""


def require_provider(device: torch.device) -> None:
    """Check that this ONNX Runtime supports the device."""
    import onnxruntime

    if device.type == "cuda" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise VariantError(
            "this ONNX Runtime has no CUDAExecutionProvider. Replace it: pip uninstall onnxruntime, then "
            "pip install onnxruntime-gpu"
        )


def load_session(path: Path, device: torch.device, threads: int) -> Call:
    """Load an ONNX file."""
    require_provider(device)
    with variant_errors(f"ONNX Runtime cannot load {path.name}"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = _QUIET
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
            # By default it multiplies in TF32, and the variant is named float32.
            cuda = ("CUDAExecutionProvider", {"device_id": device.index, "use_tf32": 0})
            session = onnxruntime.InferenceSession(path, options, providers=[cuda, "CPUExecutionProvider"])
            if "CUDAExecutionProvider" not in session.get_providers():
                raise VariantError("ONNX Runtime fell back to the CPU because its CUDA libraries cannot be loaded")
            return _cuda_call(session, device)
        return _cpu_call(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]))


def _cpu_call(session: Any) -> Call:
    def call(inputs: Tensor) -> Tensor:
        try:
            (outputs,) = session.run([OUTPUT_NAME], {INPUT_NAME: inputs.detach().contiguous().numpy()})
        except Exception as error:  # its errors derive from Exception alone
            raise VariantError(f"ONNX Runtime: {reason_of(error)}") from error
        return torch.from_numpy(outputs)

    return call


def _cuda_call(session: Any, device: torch.device) -> Call:
    """Return a call that keeps inputs and outputs on the GPU: the session reads and writes torch's memory."""
    import numpy as np

    places = tuple(session.get_outputs()[0].shape[1:])
    if not all(isinstance(size, int) for size in places):
        raise VariantError(f"the shape of the output, {places}, is not fixed")

    def call(inputs: Tensor) -> Tensor:
        inputs = inputs.detach().contiguous()
        outputs = torch.empty((len(inputs), *places), device=device)
        binding = session.io_binding()
        at = ("cuda", device.index, np.float32)
        binding.bind_input(INPUT_NAME, *at, tuple(inputs.shape), inputs.data_ptr())
        binding.bind_output(OUTPUT_NAME, *at, tuple(outputs.shape), outputs.data_ptr())
        # The session has its own stream. Torch's queued work on the input must finish first; the session waits for its
        # own work before it returns.
        torch.cuda.current_stream(device).synchronize()
        session.run_with_iobinding(binding)
        return outputs

    return call


class OnnxRuntime(Runtime):
    """Runs the model from an ONNX file, which needs neither torch, nor the model's class, nor a compiler."""

    name = "onnxruntime"
    summary = "ONNX Runtime, float32"
    why_not_on_gpu: str | None = None
    """Reason why it does not run on a GPU; None if it does."""

    def missing(self, device: torch.device) -> str | None:
        """Return why ONNX Runtime cannot run: it is not installed, or does not support the device.

        Only its import shows whether it was built for GPUs, so `load_session` checks that.
        """
        if device.type != "cpu" and self.why_not_on_gpu is not None:
            return self.why_not_on_gpu
        if device.type not in {"cpu", "cuda"}:
            return f"lightning-perf uses ONNX Runtime on cpu and cuda only, not on {device.type}"
        if device.type == "cuda":
            return missing_package("onnxruntime", package="onnxruntime-gpu")
        return missing_package("onnxruntime", extra="infer")

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        require_provider(subject.device)
        write_onnx(subject, folder / ONNX_FILE)
        return {"dtype": "float32", **package_versions("onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:
        return load_session(folder / ONNX_FILE, device, threads)


class OnnxRuntimeInt8(OnnxRuntime):
    """Runs with weights and activations in int8, calibrated on real inputs. It needs no compiler."""

    name = "onnxruntime-int8"
    summary = "ONNX Runtime, int8 weights and activations, calibrated"
    why_not_on_gpu = "ONNX Runtime has no int8 convolutions for CUDA: use tensorrt-int8"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        return write_qdq_onnx(subject, folder / ONNX_FILE)


class OnnxRuntimeInt8Dynamic(OnnxRuntime):
    """Runs models of linear layers, such as transformers, with int8 weights and without calibration.

    It does not accept convolutions: ONNX Runtime has no fast kernel for them in this scheme, and a ResNet-18 ran nine
    times slower than in float32.
    """

    name = "onnxruntime-int8-dynamic"
    summary = "ONNX Runtime, int8 weights, activations quantized in each call; no convolutions"
    why_not_on_gpu = "ONNX Runtime quantizes activations in each call on CPUs only: use tensorrt-int8"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        convolutions = sum(isinstance(layer, nn.modules.conv._ConvNd) for layer in subject.module.modules())
        if convolutions:
            raise VariantError(
                f"the model has {convolutions} convolutions, which are many times slower with dynamic ranges: use "
                "onnxruntime-int8"
            )
        return write_dynamic_onnx(subject, folder / ONNX_FILE)


def load_openvino(path: Path, threads: int) -> Call:
    """Compile an ONNX file for one request at a time on a number of threads.

    Float32 operations stay float32; by default OpenVINO would use bfloat16 on processors that have it.
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
            # Copy the outputs: the request will write the next ones to the same memory.
            results = request.infer([inputs.detach().contiguous().numpy()], share_inputs=True, share_outputs=False)
        except RuntimeError as error:
            raise VariantError(f"OpenVINO: {reason_of(error)}") from error
        return torch.from_numpy(results[0])

    return call


class OpenVino(Runtime):
    """Runs the ONNX file of `OnnxRuntime` in OpenVINO, on x86 and Arm CPUs."""

    name = "openvino"
    summary = "OpenVINO, float32"

    def missing(self, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"lightning-perf uses OpenVINO on CPUs only, not on {device.type}"
        return missing_package("openvino", extra="openvino")

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        write_onnx(subject, folder / ONNX_FILE)
        return {"dtype": "float32", **package_versions("onnx", "onnxscript", "openvino")}

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        return load_openvino(folder / ONNX_FILE, threads)


class OpenVinoInt8(OpenVino):
    """Runs the quantized ONNX file of `OnnxRuntimeInt8` in OpenVINO."""

    name = "openvino-int8"
    summary = "OpenVINO, int8 weights and activations, calibrated"

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Export, calibrate and quantize with ONNX Runtime's quantizer."""
        return {**write_qdq_onnx(subject, folder / ONNX_FILE), **package_versions("openvino")}


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
