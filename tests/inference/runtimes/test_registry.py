"""Every runtime at once: outputs of the module, any batch size, reasons instead of errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.runtimes.registry import RUNTIMES, find_runtime
from tests.inference.runtimes.support import (
    CPU,
    Undecided,
    perceptron,
    pictures,
    plain_network,
    residual_network,
    subject_of,
    trained_network,
)

# Largest difference relative to the largest output. float32: another order of sums. bfloat16 has 8 bits.
FLOATS = {
    "eager": 0.0,
    "channels-last": 1e-5,
    "channels-last-fused": 1e-5,
    "onnxruntime": 1e-5,
    "openvino": 1e-5,
    "bf16": 0.03,
}
INT8 = ("onnxruntime-int8", "openvino-int8")


def built(name: str, module: torch.nn.Module, folder: Path, count: int = 5):
    runtime = find_runtime(name)
    if reason := runtime.missing(CPU):
        pytest.skip(reason)
    inputs = pictures(count)
    provenance = runtime.build(subject_of(module, inputs, pictures(32, seed=5)), folder)
    assert all(isinstance(value, str) for value in provenance.values())
    return runtime.load(folder, CPU, 1)


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def check(
    name: str,
    folder: Path,
    tolerance: float,
    capfd: pytest.CaptureFixture[str],
    module: torch.nn.Module | None = None,
    counts: Sequence[int] = (1, 3, 7),
) -> None:
    module = residual_network() if module is None else module
    before = {key: value.clone() for key, value in module.state_dict().items()}
    call = built(name, module, folder)
    for count in counts:
        inputs = pictures(count, seed=count)
        with torch.no_grad():
            wanted = module(inputs)
        got = call(inputs)
        assert got.dtype == torch.float32
        assert got.shape == wanted.shape
        assert difference(got, wanted) <= tolerance
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("name", "tolerance"), FLOATS.items())
def test_outputs_are_the_modules(name, tolerance, tmp_path, capfd):
    check(name, tmp_path, tolerance, capfd)


@pytest.mark.slow
def test_a_library_for_any_batch_size_gives_the_modules_outputs(tmp_path, capfd):
    if reason := find_runtime("compile").missing(CPU):
        pytest.skip(reason)
    check("aot-inductor", tmp_path, 1e-4, capfd, plain_network())


@pytest.mark.slow
def test_two_models_of_one_class_keep_their_own_frozen_weights(tmp_path, capfd):
    for seed, counts in ((0, (1, 3)), (1, (3,))):
        (tmp_path / str(seed)).mkdir()
        check("compile", tmp_path / str(seed), 1e-4, capfd, plain_network(seed), counts)


@pytest.mark.parametrize("name", INT8)
def test_int8_decides_as_the_module_does(name, tmp_path, capfd):
    module = trained_network()
    call = built(name, module, tmp_path)
    inputs = pictures(64, seed=9)
    with torch.no_grad():
        wanted = module(inputs)
    assert (wanted.argmax(1) == torch.arange(64) % 4).float().mean() > 0.95
    got = call(inputs)
    assert (got.argmax(1) == wanted.argmax(1)).float().mean() > 0.95
    assert 0 < difference(got, wanted) < 0.2
    assert difference(call(inputs[:1]), wanted[:1]) < 0.2
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["onnxruntime-int8-dynamic", "int8-weight-only"])
def test_int8_of_linear_layers(name, tmp_path, capfd):
    runtime = find_runtime(name)
    if reason := runtime.missing(CPU):
        pytest.skip(reason)
    module, inputs = perceptron(), torch.randn(5, 12, generator=torch.Generator().manual_seed(3))
    runtime.build(subject_of(module, inputs), tmp_path)
    call = runtime.load(tmp_path, CPU, 1)
    with torch.no_grad():
        wanted = module(inputs)
    assert 0 < difference(call(inputs), wanted) < 0.1
    assert call(inputs[:1]).shape == (1, 3)
    assert capfd.readouterr() == ("", "")


HEAVY = {"onnx", "onnxscript", "onnxruntime", "openvino", "torchao", "tensorrt", "torch._inductor.compile_fx"}
"""Modules that importing the registry must not load."""


def test_a_fresh_process_gives_the_same_outputs(tmp_path):
    names = [name for name in ("eager", "onnxruntime", "onnxruntime-int8") if not find_runtime(name).missing(CPU)]
    calls = {}
    for name in names:
        (tmp_path / name).mkdir()
        calls[name] = built(name, residual_network(), tmp_path / name)
    torch.save(pictures(3), tmp_path / "inputs")
    program = (
        "import sys, torch; from pathlib import Path\n"
        "from lightning_perf.inference.runtimes.registry import find_runtime\n"
        f"assert not {HEAVY} & set(sys.modules)\n"
        "torch.set_num_threads(1); folder = Path(sys.argv[1])\n"
        f"for name in {names}:\n"
        "    call = find_runtime(name).load(folder / name, torch.device('cpu'), 1)\n"
        "    torch.save(call(torch.load(folder / 'inputs')), folder / name / 'outputs')\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, call in calls.items():
            assert difference(torch.load(tmp_path / name / "outputs"), call(pictures(3))) <= 1e-6
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["aot-inductor", "onnxruntime", "channels-last-fused"])
def test_control_flow_by_the_numbers_is_a_reason(name, tmp_path, capfd):
    runtime = find_runtime(name)
    if reason := runtime.missing(CPU):
        pytest.skip(reason)
    with pytest.raises(VariantError) as caught:
        runtime.build(subject_of(Undecided(), pictures(3)), tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["onnxruntime-int8", "openvino-int8", "int8-pt2e"])
def test_int8_needs_calibration_inputs(name, tmp_path):
    runtime = find_runtime(name)
    if reason := runtime.missing(CPU):
        pytest.skip(reason)
    with pytest.raises(VariantError, match="for calibration"):
        runtime.build(subject_of(residual_network(), pictures(3), pictures(3)[:0]), tmp_path)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("onnxruntime", "onnxruntime"),
        ("openvino", "openvino"),
        ("int8-pt2e", "torchao"),
        ("int8-weight-only", "torchao"),
    ],
)
def test_a_missing_package_is_a_reason(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    reason = find_runtime(name).missing(CPU)
    assert reason is not None
    assert f"{package} is not installed" in reason
    assert "pip install" in reason


def test_a_missing_compiler_is_a_reason_to_build_and_none_to_load(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for name in ("compile", "int8-pt2e") if find_spec("torchao") is not None else ("compile",):
        assert "C++ compiler" in (find_runtime(name).missing(CPU) or "")
    package = find_runtime("aot-inductor")
    assert package.missing(CPU) is None
    with pytest.raises(VariantError, match=r"C\+\+ compiler"):
        package.build(subject_of(residual_network(), pictures(3)), tmp_path)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InferenceError, match="Did you mean 'onnxruntime-int8'"):
        find_runtime("onnxruntime-int")


def test_names_are_unique_and_the_baseline_is_first():
    names = [runtime.name for runtime in RUNTIMES]
    assert len(set(names)) == len(names) == 16
    assert names[0] == "eager"
