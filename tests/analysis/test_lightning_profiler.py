"""Recordings of Lightning's own `PyTorchProfiler`: phases, updates and savings, in the layouts of 1.8 to 2.6."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict

from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from lightning_perf.findings.registry import find
from tests.support.known import known
from tests.support.lightning_profiler import BACKWARD, LOOPS, MODES, STEP, STEPS, TAIL, recording


def layouts() -> list[tuple[str, str]]:
    return [(version, mode) for version in LOOPS for mode in MODES]


def phase_us(analysis: RankAnalysis, name: str) -> float:
    return analysis.phases.phase(name).mean_ns / 1000


@pytest.mark.parametrize(("version", "mode"), layouts())
def test_the_phases_of_the_steps(version, mode):
    analysis = analyze_rank(recording(version, mode).build())
    assert phase_us(analysis, "fetch") == 500
    assert phase_us(analysis, "transfer") == 100
    assert phase_us(analysis, "forward") == 1800
    assert phase_us(analysis, "backward") == (BACKWARD + 20) * 3 / 4


@pytest.mark.parametrize(("version", "mode"), layouts())
def test_an_update_is_clipped_to_the_recorded_steps(version, mode):
    optimizer = known(analyze_rank(recording(version, mode).build()).optimizer)
    # Of each update about 0.5 ms, and the start of the step around the closure. Not the 34 ms after the last step.
    assert 400 * 3 / 4 < optimizer.host_ns / STEPS / 1000 < 800


@pytest.mark.parametrize(("version", "mode"), layouts())
def test_no_saving_exceeds_the_phase_that_it_is_taken_from(version, mode):
    analysis = analyze_rank(recording(version, mode).build())
    found = {finding.kind: finding for finding in find([analysis])}
    update = found["unfused-optimizer"]
    assert update.saving_high_ms is not None
    assert update.saving_high_ms <= phase_us(analysis, "optimizer") / 1000
    assert all((finding.saving_high_ms or 0.0) <= STEP / 1000 for finding in found.values())


@pytest.mark.parametrize(("version", "mode"), layouts())
def test_the_length_of_the_tail_does_not_matter(version, mode):
    def sections(tail_us: int) -> dict[str, object]:
        found = asdict(analyze_rank(recording(version, mode, tail_us=tail_us).build()))
        return {name: value for name, value in found.items() if name not in ("sources", "recording_ns")}

    assert sections(TAIL) == sections(2 * TAIL)
