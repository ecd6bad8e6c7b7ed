"""Every runtime at once: outputs of the module, any batch size, reasons instead of errors."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.runtimes.base import Runtime
from lightning_perf.inference.runtimes.inductor import compiled_call
from lightning_perf.inference.runtimes.registry import RUNTIMES, find_runtime
from lightning_perf.inference.variants.variant import default_variants
from tests.inference.support import CPU, pictures, plain_network, residual_network, subject_of, trained_network
from tests.support.processes import fork_ranks

# Largest difference relative to the largest output. float32: another order of sums. bfloat16 has 8 bits.
FLOATS = {
    "eager": 0.0,
    "channels-last": 1e-5,
    "channels-last-fused": 1e-5,
    "onnxruntime": 1e-5,
    "openvino": 1e-5,
    "bf16": 0.03,
}


def usable(name: str) -> Runtime:
    runtime = find_runtime(name)
    if reason := runtime.missing(CPU):
        pytest.skip(reason)
    return runtime


def built(name: str, module: nn.Module, folder: Path):
    runtime = usable(name)
    provenance = runtime.build(subject_of(module, pictures(5), pictures(32, seed=5)), folder)
    assert all(isinstance(value, str) for value in provenance.values())
    return runtime.load(folder, CPU, 1)


def difference(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def check(name: str, module: nn.Module, folder: Path, tolerance: float, counts: Sequence[int] = (1, 3, 7)) -> None:
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


@pytest.fixture(autouse=True)
def _quiet(capfd):
    yield
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("name", "tolerance"), FLOATS.items())
def test_outputs_are_the_modules(name, tolerance, tmp_path):
    check(name, residual_network(), tmp_path, tolerance)


@pytest.mark.parametrize(("inputs", "order"), [(pictures(3), "channels_last"), (torch.randn(3, 12), None)])
def test_channels_are_innermost_if_there_are_any(inputs, order, tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(inputs[0].numel(), 2)).eval()
    assert usable("bf16").build(subject_of(module, inputs), tmp_path).get("memory_format") == order


@pytest.mark.slow
def test_a_library_for_any_batch_size_gives_the_modules_outputs(tmp_path):
    usable("compile")
    # The wrapper around the kernels takes most of the time to compile.
    with torch._inductor.config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
        check("aot-inductor", plain_network(), tmp_path, 1e-4)


@pytest.mark.slow
def test_two_models_of_one_class_keep_their_own_frozen_weights(tmp_path):
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        check("compile", plain_network(seed), tmp_path / str(seed), 1e-4, counts=(3,))


@pytest.fixture
def compiled(monkeypatch):
    """Each compilation's freezing switch, instead of a compiler."""
    seen = []

    def backend(graph, _):
        seen.append(torch._inductor.config.freezing)
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_(module, dynamic=False, backend=backend))
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


def test_weights_are_frozen_whatever_tensors_come(compiled):
    call = compiled_call(nn.Conv2d(1, 2, 3).eval(), threads=1)
    normal = torch.randn(2, 1, 5, 5)
    with torch.inference_mode():
        of_inference = torch.randn(2, 1, 5, 5)
    odd = normal.as_strided((2, 1, 5, 5), (25, 7, 5, 1))
    channels_last = normal.to(memory_format=torch.channels_last)
    wanted = call(normal)
    for inputs in (of_inference, odd, channels_last, normal[:1], of_inference[:1], normal):
        call(inputs)
    torch.testing.assert_close(call(odd), wanted)
    assert compiled == [True] * 4  # two batch sizes, within inference mode and without
    assert not torch._inductor.config.freezing


@pytest.mark.parametrize("name", ["compile-reduce-overhead", "compile-max-autotune"])
def test_graphs_of_kernels_need_a_gpu(name):
    assert find_runtime(name).missing(CPU) == "CUDA graphs run on GPUs, not on cpu: use compile"
    assert name not in default_variants("cpu")


def test_the_modes_compile_with_their_options_and_keep_outputs_of_earlier_calls(monkeypatch):
    given = []
    buffer = torch.zeros(1, 2)  # a CUDA graph writes all its outputs into the same memory

    def compile_(module, **options):
        given.append(options)
        return lambda inputs: buffer.add_(1)

    monkeypatch.setattr(torch, "compile", compile_)
    for name in ("compile", "compile-reduce-overhead", "compile-max-autotune"):
        call = compiled_call(nn.Identity(), 3, find_runtime(name).mode)
        buffer.zero_()
        outputs = [call(torch.zeros(1, 2)) for _ in range(3)]
        kept = [1.0, 2.0, 3.0] if name != "compile" else [3.0, 3.0, 3.0]
        assert [float(each[0, 0]) for each in outputs] == kept
    assert [set(each["options"]) - {"cpp.threads"} for each in given] == [
        set(),
        {"triton.cudagraphs"},
        {"max_autotune", "triton.cudagraphs", "coordinate_descent_tuning"},
    ]


@pytest.mark.slow
def test_a_model_without_a_graph_is_no_result_of_graphs():
    usable("compile")
    with pytest.raises(VariantError, match="made no CUDA graph of this model"):
        compiled_call(plain_network(), 1, "reduce-overhead")(pictures(2))


@pytest.fixture(scope="module")
def trained():
    return trained_network()


@pytest.mark.parametrize("name", ["onnxruntime-int8", "openvino-int8"])
def test_int8_decides_as_the_module_does(name, trained, tmp_path):
    call = built(name, trained, tmp_path)
    inputs = pictures(64, seed=9)
    with torch.no_grad():
        wanted = trained(inputs)
    assert (wanted.argmax(1) == torch.arange(64) % 4).float().mean() > 0.95
    got = call(inputs)
    assert (got.argmax(1) == wanted.argmax(1)).float().mean() > 0.95
    assert 0 < difference(got, wanted) < 0.2
    assert difference(call(inputs[:1]), wanted[:1]) < 0.2


@pytest.mark.parametrize("name", ["onnxruntime-int8-dynamic", "int8-weight-only"])
def test_int8_of_linear_layers(name, tmp_path):
    runtime = usable(name)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
    inputs = torch.randn(5, 12, generator=torch.Generator().manual_seed(3))
    runtime.build(subject_of(module, inputs), tmp_path)
    call = runtime.load(tmp_path, CPU, 1)
    with torch.no_grad():
        wanted = module(inputs)
    assert 0 < difference(call(inputs), wanted) < 0.1
    assert call(inputs[:1]).shape == (1, 3)


HEAVY = {"onnx", "onnxscript", "onnxruntime", "openvino", "torchao", "tensorrt", "torch._inductor.compile_fx"}
"""Modules that importing the registry must not load."""


def run_fresh(program: str, folder: Path) -> str:
    """Run a program in a process that has imported torch, and neither these tests nor a runtime."""
    (folder / "program.py").write_text(program)
    done = fork_ranks(str(folder / "program.py"), str(folder), ranks=1)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


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
    assert run_fresh(program, tmp_path) == ""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, call in calls.items():
            assert difference(torch.load(tmp_path / name / "outputs"), call(pictures(3))) <= 1e-6
    finally:
        torch.set_num_threads(threads)


LOADED = """
import sys, torch
from pathlib import Path
from torch._dynamo.utils import counters
from lightning_perf.inference.runtimes.torchao_int8 import Int8Pt2e

torch.set_num_threads(1)
call = Int8Pt2e().load(Path(sys.argv[1]), torch.device("cpu"), 1)
torch.save(call(torch.load(sys.argv[1] + "/inputs")), sys.argv[1] + "/outputs")
print(counters["inductor"]["qconv_weight_prepack_matcher_count"])
"""


@pytest.mark.slow
def test_a_process_that_only_loads_a_program_of_torchao_computes_in_int8(tmp_path):
    module, inputs = plain_network(), pictures(5)
    built("int8-pt2e", module, tmp_path)  # compiles at its first call only
    torch.save(inputs, tmp_path / "inputs")
    assert int(run_fresh(LOADED, tmp_path)) == sum(isinstance(part, nn.Conv2d) for part in module.modules()) == 1
    with torch.no_grad():
        wanted = module(inputs)
    assert 0 < difference(torch.load(tmp_path / "outputs"), wanted) < 0.2


class Undecided(nn.Module):
    """Its path depends on the numbers."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sin() if inputs.sum() > 0 else inputs.cos()


@pytest.mark.parametrize("name", ["aot-inductor", "onnxruntime", "channels-last-fused"])
def test_control_flow_by_the_numbers_is_a_reason(name, tmp_path):
    with pytest.raises(VariantError) as caught:
        usable(name).build(subject_of(Undecided(), pictures(3)), tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["onnxruntime-int8", "openvino-int8", "int8-pt2e"])
def test_int8_needs_calibration_inputs(name, tmp_path):
    with pytest.raises(VariantError, match="for calibration"):
        usable(name).build(subject_of(residual_network(), pictures(3), pictures(3)[:0]), tmp_path)


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
    reason = find_runtime(name).missing(CPU) or ""
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


def test_names_are_unique_and_an_unknown_one_is_answered_with_the_nearest():
    names = [runtime.name for runtime in RUNTIMES]
    assert len(set(names)) == len(names) == 18
    assert names[0] == "eager"
    with pytest.raises(InferenceError, match="Did you mean 'onnxruntime-int8'"):
        find_runtime("onnxruntime-int")
