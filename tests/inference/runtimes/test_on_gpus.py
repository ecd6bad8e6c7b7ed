"""The files that TensorRT gets, run by ONNX Runtime, and stand-ins for GPU packages that note what is asked of them."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtimes import export
from lightning_perf.inference.runtimes.export import weights_apart, write_onnx, write_qdq_onnx
from lightning_perf.inference.runtimes.onnx_runtimes import MAX_BATCH, load_engine, load_session
from lightning_perf.inference.runtimes.registry import find_runtime
from lightning_perf.machine import environment
from tests.inference.support import CPU, pictures, residual_network, subject_of, trained_network

onnx = pytest.importorskip("onnx", reason="needs onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")


def test_tensorrts_int8_file_has_zero_points_of_0_and_the_modules_decisions(tmp_path):
    module, path = trained_network(), tmp_path / "int8.onnx"
    write_qdq_onnx(subject_of(module, pictures(3), pictures(32, seed=5)), path, for_tensorrt=True)
    graph = onnx.load(path).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    pairs = [node for node in graph.node if node.op_type in {"QuantizeLinear", "DequantizeLinear"}]
    assert len(pairs) > 6
    for node in pairs:
        assert constants[node.input[2]].dtype == np.int8
        assert not constants[node.input[2]].any()
    weights = [node for node in pairs if node.op_type == "QuantizeLinear" and node.input[0] in constants]
    assert {constants[node.input[0]].dtype for node in weights} == {np.dtype(np.float32)}
    assert any(constants[node.input[1]].size == 8 for node in weights)  # a scale for each output channel
    inputs = pictures(64, seed=9)
    with torch.no_grad():
        wanted = module(inputs).argmax(1)
    assert (load_session(path, CPU, 1)(inputs).argmax(1) == wanted).float().mean() > 0.95


def test_tensorrts_float16_file_is_float16_throughout(tmp_path):
    module, path, inputs = residual_network(), tmp_path / "half.onnx", pictures(3)
    write_onnx(subject_of(module, inputs), path, torch.float16)
    graph = onnx.load(path).graph
    types = {tensor.type.tensor_type.elem_type for tensor in (*graph.input, *graph.output)}
    assert types == {onnx.TensorProto.FLOAT16}
    assert onnx.TensorProto.FLOAT not in {tensor.data_type for tensor in graph.initializer}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"input": inputs.half().numpy()})
    with torch.no_grad():
        wanted = module(inputs)
    assert (torch.from_numpy(got).float() - wanted).abs().max() < 0.02 * wanted.abs().max()


@pytest.mark.parametrize("name", ["tensorrt-fp16", "tensorrt-int8"])
def test_tensorrt_says_what_is_missing(name, monkeypatch):
    assert "NVIDIA" in (find_runtime(name).missing(CPU) or "")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert 'pip install "tensorrt"' in (find_runtime(name).missing(torch.device("cuda")) or "")


def test_weights_keep_7_bits_where_products_would_overflow(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(environment, "CPUINFO", cpuinfo)
    monkeypatch.setattr(export.platform, "machine", lambda: "x86_64")
    cpuinfo.write_text("processor\t: 0\nflags\t\t: avx avx2\n")
    path = tmp_path / "model.onnx"
    provenance = write_qdq_onnx(subject_of(residual_network(), pictures(3)), path)
    assert "7 bits" in provenance["weights"]
    graph = onnx.load(path).graph
    stored = [onnx.numpy_helper.to_array(t) for t in graph.initializer if t.data_type == onnx.TensorProto.INT8]
    assert max(int(np.abs(array.astype(np.int32)).max()) for array in stored if array.ndim >= 2) == 64


def test_weights_beyond_protobufs_limit_lie_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "PROTOBUF_LIMIT_BYTES", 100)
    module, inputs = residual_network(), pictures(3)
    assert weights_apart(module)
    runtime = find_runtime("onnxruntime")
    runtime.build(subject_of(module, inputs), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    with torch.no_grad():
        wanted = module(inputs)
    torch.testing.assert_close(runtime.load(tmp_path, CPU, 1)(inputs), wanted, rtol=1e-4, atol=1e-4)


def test_a_variant_named_float32_does_not_multiply_in_tf32(monkeypatch, tmp_path):
    asked = []

    class Session:
        def __init__(self, path, options, providers):
            asked.extend(providers)

        def get_providers(self):
            return ["CUDAExecutionProvider"]

        def get_outputs(self):
            return [SimpleNamespace(shape=["batch", 10])]

    stand_in = SimpleNamespace(
        InferenceSession=Session,
        SessionOptions=SimpleNamespace,
        ExecutionMode=SimpleNamespace(ORT_SEQUENTIAL=0),
        get_available_providers=lambda: ["CUDAExecutionProvider"],
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", stand_in)
    load_session(tmp_path / "model.onnx", torch.device("cuda", 1), 1)
    # Its default is 1 (onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#use_tf32).
    assert asked[0] == ("CUDAExecutionProvider", {"device_id": 1, "use_tf32": 0})


DEFAULT, OWN = 0, 7
"""CUDA's handle of the legacy default stream, and of the engine's."""


class Cuda:
    """Streams, and an engine that gives as many rows as it takes, with two values each."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, int, int]] = []
        self.works = True
        self.rows = 0

    def stream(self, handle: int) -> SimpleNamespace:
        wait = lambda other: self.notes.append(("wait", handle, other.cuda_stream))  # noqa: E731
        return SimpleNamespace(cuda_stream=handle, wait_stream=wait)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None:
        self.rows = shape[0]

    def get_tensor_shape(self, name: str) -> tuple[int, int]:
        return self.rows, 2

    def set_tensor_address(self, name: str, address: int) -> None:
        assert address

    def execute_async_v3(self, handle: int) -> bool:
        self.notes.append(("run", handle, self.rows))
        return self.works


def test_an_engine_never_runs_on_the_default_stream(monkeypatch, tmp_path):
    cuda = Cuda()
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: cuda.stream(DEFAULT))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: cuda.stream(OWN))
    levels = []
    loaded = SimpleNamespace(create_execution_context=lambda: cuda)
    module = SimpleNamespace(
        Logger=type("Logger", (), {"WARNING": "warning", "__init__": lambda self, level: levels.append(level)}),
        Runtime=lambda logger: SimpleNamespace(deserialize_cuda_engine=lambda plan: loaded if plan else None),
        __version__="11.0",
    )
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    path = tmp_path / "model.engine"
    path.touch()
    with pytest.raises(VariantError, match="another version of TensorRT than 11"):
        load_engine(path, CPU, torch.float32)
    path.write_bytes(b"plan")
    call = load_engine(path, CPU, torch.float32)
    assert levels == ["warning", "warning"]
    assert call(torch.zeros(3, 4)).shape == (3, 2)
    # The engine's stream waits for the inputs, and the caller's for the outputs.
    assert cuda.notes == [("wait", OWN, DEFAULT), ("run", OWN, 3), ("wait", DEFAULT, OWN)]
    cuda.notes.clear()
    assert call(torch.zeros(MAX_BATCH + 1, 4)).shape == (MAX_BATCH + 1, 2)  # in parts
    assert [note for note in cuda.notes if note[0] == "run"] == [("run", OWN, MAX_BATCH), ("run", OWN, 1)]
    assert cuda.notes[-1] == ("wait", DEFAULT, OWN)
    cuda.works = False
    with pytest.raises(VariantError, match="could not run"):
        call(torch.zeros(1, 4))
