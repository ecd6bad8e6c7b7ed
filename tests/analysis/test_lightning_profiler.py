"""Recordings of Lightning's own `PyTorchProfiler`: phases, updates and savings, in the layouts of 1.8 to 2.6."""

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.findings.whole_run import find
from tests.support.known import known
from tests.support.lightning_profiler import BACKWARD, LOOPS, MODES, STEP, STEPS, TAIL, recording


@pytest.mark.parametrize("version", LOOPS)
@pytest.mark.parametrize("mode", MODES)
def test_phases_updates_and_savings_of_the_recorded_steps(version: str, mode: str) -> None:
    analysis = analyze_rank(recording(version, mode).build())
    phases_us = {phase.name: phase.mean_ns / 1000 for phase in analysis.phases.phases}
    assert (phases_us["fetch"], phases_us["transfer"], phases_us["forward"]) == (500, 100, 1800)
    assert phases_us["backward"] == (BACKWARD + 20) * 3 / 4
    # Of each update about 0.5 ms, and the start of the step around the closure. Not the 34 ms after the last step.
    assert 400 * 3 / 4 < known(analysis.optimizer).host_ns / STEPS / 1000 < 800
    found = {finding.kind: finding.saving_high_ms or 0.0 for finding in find([analysis])}
    assert 0 < found["unfused-optimizer"] <= phases_us["optimizer"] / 1000
    assert max(found.values()) <= STEP / 1000

    longer = analyze_rank(recording(version, mode, tail_us=2 * TAIL).build())
    assert replace(longer, sources=analysis.sources, recording_ns=analysis.recording_ns) == analysis
