"""A probe of a training on a device: its flags, its settings, and the device itself. No device is needed."""

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_perf.callbacks.precision.tf32 import Fp32Flags
from lightning_perf.machine.environment import cuda_settings, setting_facts
from lightning_perf.probe.plan import Plan, plan_probe
from lightning_perf.probe.replay.measure import make_calls
from lightning_perf.probe.replay.messages import CURRENT, Measured, Setting
from lightning_perf.probe.replay.worker import set_up_device
from lightning_perf.probe.run import build_probe
from lightning_perf.trace.description import SETTINGS_KEY, Settings
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder

FP32, TF32 = "ampere_sgemm_128x64_nn", "cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4"
FP32_CONVOLUTION = "implicit_convolve_sgemm<float, 128, 6, 7>"
TF32_ATTENTION = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(Params)"
DEVICES = ("0000-a", "0000-b", "0000-c")


@pytest.fixture
def _flags():
    flags = Fp32Flags.read()
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    yield
    flags.write()
    cudnn.benchmark, cudnn.deterministic = before
    torch.use_deterministic_algorithms(mode=False)


def recorded(noted: dict[str, Any] | None, **kernels: str) -> Trace:
    """A step on a device, with a kernel by operator."""
    builder = TraceBuilder(**({SETTINGS_KEY: noted} if noted is not None else {})).step(1, 0, 1000)
    builder.gpu("NVIDIA H100 80GB HBM3", computeMajor=9, computeMinor=0)
    for place, (operator, kernel) in enumerate(kernels.items()):
        at = 10 + 100 * place
        builder.op(f"aten::{operator}", at, 50, types=["float", "float"], dims=[[4, 4], [4, 4]])
        builder.launch(kernel, call_us=at + 2, call_duration_us=5, start_us=at + 10, duration_us=40)
    return builder.build()


def planned(trace: Trace) -> Plan:
    plan = plan_probe(trace, 1.0, has_cuda=True)
    assert plan is not None
    return plan


def tf32_of(trace: Trace) -> dict[str, tuple[bool, bool]]:
    settings = planned(trace).task.settings
    return {setting.name: (setting.tf32_matmul, setting.tf32_convolution) for setting in settings}


@pytest.mark.parametrize(
    ("kernels", "flags"),
    [
        ({"cudnn_convolution": TF32, "mm": FP32}, (False, True)),  # torch's defaults
        ({"cudnn_convolution": FP32_CONVOLUTION, "mm": TF32}, (True, False)),
        ({"cudnn_convolution": FP32_CONVOLUTION}, (False, False)),
        ({"mm": FP32, "_efficient_attention_forward": TF32_ATTENTION}, (False, True)),
    ],
)
def test_products_and_convolutions_have_flags_of_their_own(kernels: dict[str, str], flags: tuple[bool, bool]) -> None:
    assert tf32_of(recorded(None, **kernels)) == {CURRENT: flags, "bf16": flags, "fp16": flags, "tf32": (True, True)}


def test_noted_flags_count_more_than_kernels() -> None:
    trace = recorded({"tf32_matmul": True, "tf32_convolution": True}, cudnn_convolution=TF32, mm=FP32)
    assert tf32_of(trace) == dict.fromkeys((CURRENT, "bf16", "fp16"), (True, True))


@pytest.mark.usefixtures("_flags")
def test_each_setting_computes_with_its_own_flags() -> None:
    seen = []

    def call(_: object) -> None:
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))

    one: Any = SimpleNamespace(has_backward=False, enter=list, bound=SimpleNamespace(call=call))
    for flags in ((False, True), (True, True), (True, False)):
        setting = Setting("one", tf32_matmul=flags[0], tf32_convolution=flags[1])
        assert not make_calls({0: one}, setting, "cuda", 1, lambda run: (run(), 0)).failed
        assert seen[-1] == flags


def three_devices(monkeypatch: pytest.MonkeyPatch, current: int = 0) -> list[int]:
    """Pretend to have three devices, and return the one in use."""
    chosen = [current]
    properties = [SimpleNamespace(uuid=uuid) for uuid in DEVICES]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(DEVICES))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at=-1: properties[chosen[0] if at < 0 else at])
    monkeypatch.setattr(torch.cuda, "set_device", lambda at: chosen.__setitem__(0, at))
    return chosen


@pytest.mark.usefixtures("_flags")
def test_the_worker_gets_the_device_and_the_settings_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    chosen = three_devices(monkeypatch, current=1)
    allocator: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", allocator.append)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(mode=True)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False
    with monkeypatch.context() as variable:
        variable.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        noted = json.loads(json.dumps(setting_facts() | cuda_settings()))
    on = planned(recorded(noted, mm=FP32)).task.on
    assert on == Settings(False, True, True, True, (), DEVICES[1], True, False, "expandable_segments:True")
    chosen[0] = 0
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = False
    torch.use_deterministic_algorithms(mode=False)
    set_up_device(on)
    assert chosen == [1]
    assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.deterministic
    assert torch.are_deterministic_algorithms_enabled()
    assert allocator == ["expandable_segments:True"]
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG")


def test_another_device_of_the_same_kind_is_another_device() -> None:
    trace = recorded({"uuid": DEVICES[1]}, mm=FP32)
    for uuid, is_same in ((DEVICES[1], True), (DEVICES[0], False), (None, True)):
        measured = Measured((), {}, {}, None, 1.0, "NVIDIA H100 80GB HBM3", uuid=uuid)
        assert build_probe(trace, planned(trace), measured, 1.0).same_device is is_same
