import pytest

from lightning_perf import environment
from lightning_perf.environment import device_facts, flag_facts, host_notes, version_facts


def test_versions_are_those_that_are_installed(monkeypatch):
    import numpy as np

    facts = version_facts()
    assert facts["version.numpy"] == np.__version__
    monkeypatch.setattr(environment, "PACKAGES", ("no-such-package",))
    assert version_facts()["version.no-such-package"] is None


def test_the_processor_and_its_threads_on_a_cpu():
    torch = pytest.importorskip("torch")
    facts = device_facts(torch.device("cpu"))
    assert facts["device.type"] == "cpu"
    assert facts["device.threads"] == torch.get_num_threads()


def test_tf32_on_and_off_are_different_facts():
    torch = pytest.importorskip("torch")
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


def test_the_newer_switch_of_tf32_is_seen_as_well():
    torch = pytest.importorskip("torch")
    before = torch.backends.cuda.matmul.fp32_precision
    seen = set()
    try:
        for precision in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = precision
            seen.add(flag_facts()["flags.tf32_matmul"])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert len(seen) == 2


def test_notes_of_the_host_hold_plain_values():
    assert all(isinstance(value, (str, int, float, type(None))) for value in host_notes().values())
