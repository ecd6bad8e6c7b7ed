"""The files that TensorRT gets, read back and run by ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_perf.inference.runtimes import onnx_files as onnx_quantize
from lightning_perf.inference.runtimes.onnx_files import weights_apart, write_onnx, write_qdq_onnx
from lightning_perf.inference.runtimes.onnxruntime import load_session
from lightning_perf.inference.runtimes.registry import find_runtime
from lightning_perf.machine import environment
from tests.inference.runtimes.support import CPU, pictures, residual_network, subject_of, trained_network

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
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    assert 'pip install "tensorrt"' in (find_runtime(name).missing(torch.device("cuda")) or "")


def test_weights_keep_7_bits_where_products_would_overflow(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(environment, "CPUINFO", cpuinfo)
    monkeypatch.setattr(onnx_quantize.platform, "machine", lambda: "x86_64")
    cpuinfo.write_text("processor\t: 0\nflags\t\t: avx avx2\n")
    path = tmp_path / "model.onnx"
    provenance = write_qdq_onnx(subject_of(residual_network(), pictures(3)), path)
    assert "7 bits" in provenance["weights"]
    graph = onnx.load(path).graph
    stored = [onnx.numpy_helper.to_array(t) for t in graph.initializer if t.data_type == onnx.TensorProto.INT8]
    largest = max(int(np.abs(array.astype(np.int32)).max()) for array in stored if array.ndim >= 2)
    assert largest == 64


def test_weights_beyond_protobufs_limit_lie_beside(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_perf.inference.runtimes.onnx_files.PROTOBUF_LIMIT_BYTES", 100)
    module, inputs = residual_network(), pictures(3)
    assert weights_apart(module)
    runtime = find_runtime("onnxruntime")
    runtime.build(subject_of(module, inputs), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    with torch.no_grad():
        wanted = module(inputs)
    torch.testing.assert_close(runtime.load(tmp_path, CPU, 1)(inputs), wanted, rtol=1e-4, atol=1e-4)
