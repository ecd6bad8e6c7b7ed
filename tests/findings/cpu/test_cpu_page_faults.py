from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.findings.cpu import cpu_page_faults
from lightning_perf.trace.metadata import PROCESSOR_KEY
from tests.findings.host_recordings import convolving
from tests.findings.recordings import analysis
from tests.support.trace_builder import TraceBuilder

FAULTING = {"trains": True, "page_faults": 1000.0, "page_fault_ns": 2000.0, "allocator": "glibc"}


def recording(**changes: Any) -> TraceBuilder:
    """Three steps of 10 ms; of each, faults take 2 ms."""
    return convolving(TraceBuilder(**{PROCESSOR_KEY: FAULTING | changes}))


def test_memory_that_is_given_back() -> None:
    finding = cpu_page_faults(analysis(recording()))
    assert finding is not None
    assert finding.title.startswith("Page faults: 1,000 per step")
    assert "2.00 ms per step, 20.0 %" in finding.evidence[0]
    assert "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184" in finding.action
    assert (finding.saving_low_ms, finding.saving_high_ms) == (1.0, 2.5)
    assert finding.severity == "high"


def test_no_more_is_saved_than_operators_take() -> None:
    finding = cpu_page_faults(analysis(recording(page_faults=50_000.0)))
    assert finding is not None
    assert finding.saving_low_ms == finding.saving_high_ms
    assert finding.saving_high_ms == pytest.approx(10, abs=0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"page_faults": None},
        {"page_faults": 0.0},
        {"page_faults": 100.0},  # 0.25 ms of 10 at most
        {"page_fault_ns": None},
        {"allocator": "jemalloc"},
        {"allocator": None},
        {"trains": False},
    ],
    ids=str,
)
def test_nothing_to_find(changes: dict[str, Any]) -> None:
    assert cpu_page_faults(analysis(recording(**changes))) is None


def test_recordings_of_others() -> None:
    assert cpu_page_faults(analysis(convolving(TraceBuilder()))) is None
