import json
import os
import time
from pathlib import Path

import pytest

from lightning_perf.machine import environment, processor
from lightning_perf.machine.processor import busy_s, cpu_flags, processor_facts
from lightning_perf.workers import limits
from lightning_perf.workers.limits import usable_cores, usable_cpus

X86 = (
    "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx512_bf16 amx_bf16\n\nprocessor\t: 1\nflags\t\t: other\n"
)
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n"


@pytest.mark.parametrize(
    ("text", "flags"), [(X86, {"fpu", "avx512_bf16", "amx_bf16"}), (ARM, {"fp", "asimd", "bf16", "i8mm"})]
)
def test_flags(text: str, flags: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(environment, "CPUINFO", tmp_path / "cpuinfo")
    assert cpu_flags() == flags


def test_no_list_of_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "CPUINFO", tmp_path / "nothing")
    assert cpu_flags() is None


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four processors that are two cores, and no quota."""
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(limits, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(limits, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    return tmp_path


@pytest.mark.usefixtures("machine")
def test_two_threads_of_a_core_are_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    assert usable_cores() == 1


@pytest.mark.parametrize(
    ("quota", "cores", "cpus"),
    [("max 100000", 2, 4), ("150000 100000", 2, 2), ("50000 100000", 1, 1), ("250000 100000", 2, 3), ("?", 2, 4)],
)
def test_a_quota_leaves_fewer(quota: str, cores: int, cpus: int, machine: Path) -> None:
    (machine / "cpu.max").write_text(quota + "\n")
    assert (usable_cores(), usable_cpus()) == (cores, cpus)


def test_the_time_of_busy_processors_grows_with_our_own() -> None:
    before, own = busy_s(), time.process_time()
    if before is None:
        pytest.skip("this system does not count it")
    while time.process_time() < own + 0.3:
        pass
    after = busy_s()
    assert after is not None
    assert after - before >= 0.2


def test_the_time_of_busy_processors_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "STATISTICS", tmp_path / "none")
    assert busy_s() is None


def test_cores_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "TOPOLOGY", tmp_path)
    assert usable_cores() is None
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_cores() is None


def test_facts_are_json_and_tell_what_torch_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(processor, "cpu_flags", lambda: frozenset({"fpu", "amx_bf16", "avx512_bf16"}))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    facts = json.loads(json.dumps(processor_facts(trains=True)))
    assert (facts["bf16"], facts["trains"]) == (["amx_bf16", "avx512_bf16"], True)
    assert facts["threads"] == torch.get_num_threads()
    assert facts["load"] is None or facts["load"] >= 0
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert processor_facts(trains=False)["bf16"] == []


def test_the_cost_of_page_faults_is_tried_out_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(processor, "page_fault_ns", lambda: 1800.0)
    monkeypatch.setattr(processor, "allocator_name", lambda: "glibc")
    names = ("page_faults", "page_fault_ns", "allocator")
    for faults, told in ((None, (None, None, None)), (0.0, (0.0, None, None)), (700.0, (700.0, 1800.0, "glibc"))):
        facts = processor_facts(trains=True, page_faults=faults)
        assert tuple(facts[name] for name in names) == told


def test_without_a_list_torch_is_asked_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(processor, "cpu_flags", lambda: None)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cpu,
        "get_capabilities",
        lambda: {"bf16": True, "avx512_bf16": False, "sve_max_length": 256},
        raising=False,
    )
    assert processor_facts(trains=True)["bf16"] == ["bf16"]
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert processor_facts(trains=True)["bf16"] is None
