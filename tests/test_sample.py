"""The small trace that comes with the project: two equal steps, made by hand, with a known answer."""

from pathlib import Path

import lightning_perf

SAMPLE = Path(__file__).parent / "traces" / "two_steps.pt.trace.json"

# Of each step of 100 µs: 0–20 fetch, 20–30 copy (call from 20, copy from 22), 30–40 aten::mm with its launch 32–36,
# 38–78 kernel, 80–90 aten::item, the rest nothing.
EXPECTED_US = {
    "device_compute": 40,
    "memcpy_h2d": 8,
    "input": 20,
    "kernel_launch": 4,
    "runtime": 2,
    "host_compute": 14,
    "host_other": 12,
}


def test_the_sample_breaks_down_as_it_was_made() -> None:
    report = lightning_perf.analyze(SAMPLE)
    breakdown = report.ranks[0].breakdown
    assert [step.wall_ns for step in breakdown.steps] == [100_000, 100_000]
    found = {name: breakdown.category(name).per_step_ns for name in EXPECTED_US}
    assert found == {name: (us * 1000, us * 1000) for name, us in EXPECTED_US.items()}
    assert sum(EXPECTED_US.values()) == 100
