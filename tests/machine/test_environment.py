import os
import platform
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.machine import environment
from lightning_perf.machine.environment import (
    device_facts,
    flag_facts,
    host_facts,
    host_notes,
    variable_facts,
    version_facts,
)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_versions_are_those_that_are_installed(monkeypatch):
    import numpy as np

    facts = version_facts()
    assert facts["version.numpy"] == np.__version__
    monkeypatch.setattr(environment, "PACKAGES", ("no-such-package",))
    assert version_facts()["version.no-such-package"] is None


def test_the_processor_and_its_threads_on_a_cpu(torch):
    facts = device_facts(torch.device("cpu"))
    assert facts["device.type"] == "cpu"
    assert facts["device.threads"] == torch.get_num_threads()


def test_tf32_on_and_off_are_different_facts(torch):
    seen = {}
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    try:
        for on in (True, False):
            torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = on
            seen[on] = flag_facts()
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before
    differing = {name for name in seen[True] if seen[True][name] != seen[False][name]}
    assert differing == {"flags.tf32_cudnn", "flags.cudnn_benchmark"}
    assert None not in seen[True].values()


def test_one_arithmetic_is_one_fact_whichever_switch_set_it(torch):
    from lightning_perf.callbacks.precision.tf32 import Fp32Flags

    matmul, before = torch.backends.cuda.matmul, Fp32Flags.read()
    switches = (
        lambda: setattr(matmul, "fp32_precision", "none"),  # the default
        lambda: setattr(matmul, "allow_tf32", False),
        lambda: torch.set_float32_matmul_precision("highest"),
        lambda: setattr(matmul, "fp32_precision", "ieee"),
    )
    seen = []
    try:
        for switch in switches:
            switch()
            seen.append((flag_facts()["flags.tf32_matmul"], device_facts(torch.device("cpu"))["flags.mkldnn_matmul"]))
    finally:
        before.write()
    assert set(seen) == {("ieee", "ieee")}


def test_notes_of_the_host_hold_plain_values():
    assert all(isinstance(value, (str, int, float, type(None))) for value in host_notes().values())


def test_variables_that_change_speed_are_facts_where_they_are_set(monkeypatch):
    for name in [name for name in os.environ if name.startswith(environment.VARIABLE_GROUPS)]:
        monkeypatch.delenv(name)
    before = variable_facts()
    for name in ("OMP_NUM_THREADS", "LD_PRELOAD", "PYTORCH_CUDA_ALLOC_CONF", "HOME_OF_MINE", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, "1")
    changed = {name for name, value in variable_facts().items() if before.get(name) != value}
    assert changed == {"env.OMP_NUM_THREADS", "env.LD_PRELOAD", "env.PYTORCH_CUDA_ALLOC_CONF"}


@pytest.mark.parametrize(
    ("fact", "switch"),
    [
        ("flags.attention", lambda torch: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)),
        ("flags.detect_anomaly", lambda torch: torch.autograd.set_detect_anomaly(True)),
        ("flags.cudnn_enabled", lambda torch: torch.backends.cudnn.flags(enabled=False)),
    ],
)
def test_switches_in_the_users_code_are_seen(fact, switch, torch):
    before = flag_facts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with switch(torch):
            inside = flag_facts()
    assert inside[fact] != before[fact]
    assert flag_facts() == before


@pytest.mark.parametrize(("library", "other"), [("cuda", "tf32"), ("mkldnn", "bf16")])
def test_the_arithmetic_of_matrix_products_is_a_fact(torch, library, other):
    switch = getattr(torch.backends, library).matmul
    before, seen = switch.fp32_precision, []
    try:
        for precision in ("ieee", other):
            switch.fp32_precision = precision
            facts = flag_facts() | device_facts(torch.device("cpu"))
            seen.append(facts["flags.tf32_matmul" if library == "cuda" else "flags.mkldnn_matmul"])
    finally:
        switch.fp32_precision = before
    assert seen == ["ieee", other]


def test_nvml_is_asked_for_driver_and_power_limit_of_this_gpu(monkeypatch, torch):
    properties = SimpleNamespace(name="G", total_memory=1, uuid="1-2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-1-2": "handle"}[uuid],
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: {"handle": 650_000}[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    facts = device_facts(torch.device("cuda", 0))
    assert (facts["device.driver"], facts["device.power_limit_w"]) == ("580.1", 650.0)
    properties.uuid = "another"
    assert device_facts(torch.device("cuda", 0))["device.power_limit_w"] is None


def test_host_facts_name_the_machine_and_are_the_same_each_time():
    facts = host_facts()
    assert facts == host_facts()
    assert facts["host.name"] == platform.node()
    assert facts["host.kernel"] == platform.release()
    assert facts["host.cpus"] == os.cpu_count()
    assert all(name.startswith("host.") for name in facts)
