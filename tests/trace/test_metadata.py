import json

import pytest

from lightning_perf.trace.description import PROCESSOR_KEY, Processor, Settings, read_metadata


def read(value: object) -> Processor | None:
    return read_metadata(json.dumps({PROCESSOR_KEY: value}).encode(), b"").processor


def test_the_processor() -> None:
    value = {"name": "A CPU", "cores": 8, "threads": 4, "bf16": ["amx_bf16", "avx512_bf16"], "trains": True, "load": 1}
    assert read(value) == Processor("A CPU", 8, 4, ("amx_bf16", "avx512_bf16"), True, 1.0)
    more = {"page_faults": 812.5, "page_fault_ns": 1900, "allocator": "glibc"}
    assert read(more) == Processor(page_faults=812.5, page_fault_ns=1900.0, allocator="glibc")


@pytest.mark.parametrize("value", [None, [], "AMD", 7])
def test_what_is_no_processor(value: object) -> None:
    assert read(value) is None
    assert read_metadata(b"{}", b"{}").processor is None


def test_damaged_facts_are_unknown() -> None:
    value = {"name": 3, "cores": "many", "threads": None, "bf16": "avx512_bf16", "trains": "yes", "load": -1}
    assert read(value) == Processor()
    assert read({"bf16": [1, "avx512_bf16", None]}) == Processor(bf16=("avx512_bf16",))


def test_settings_of_the_device_in_a_note_of_their_own() -> None:
    notes = {
        "lightning_perf.settings": {"detect_anomaly": False, "deterministic": True, "variables": ["NCCL_DEBUG=1", 1]},
        "lightning_perf.device_settings": {"uuid": "GPU-1", "deterministic": False, "cudnn_deterministic": True},
    }
    settings = read_metadata(json.dumps(notes).encode(), b"").settings
    assert settings == Settings(False, False, True, variables=("NCCL_DEBUG=1",), uuid="GPU-1")
