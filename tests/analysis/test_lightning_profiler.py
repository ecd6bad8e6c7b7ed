"""Recordings of Lightning's own `PyTorchProfiler`, in the layouts of Lightning 1.8 to 2.6.

Its steps end where ``training_step`` returns, inside the closure of the optimizer's step. So each holds the backward
pass and the update of the batch before, and the last update is recorded after the last step. The names of the ranges
are those of the sources of each release (``profilers/pytorch.py``, ``loops/training_epoch_loop.py`` and
``trainer/call.py``).
"""

from __future__ import annotations

import pytest

from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from lightning_perf.findings.registry import find
from tests.support.trace_builder import FETCH, TraceBuilder

STEP, STEPS = 10_000, 4
FORWARD, BACKWARD, UPDATE, TAIL = 1500, 6000, 400, 34_000

LOOPS = {"1.8 to 1.9": "TrainingEpochLoop", "2.0 to 2.6": "_TrainingEpochLoop"}
"""The class that names the fetch: it became private in 2.0."""

MODES = ("automatic", "manual", "modules", "several devices")


def recording(version: str, mode: str, *, tail_us: int = TAIL) -> TraceBuilder:
    """Record `STEPS` steps. The last optimizer's step lasts `tail_us` beyond the last of them."""
    builder = TraceBuilder()
    strategy = "DDPStrategy" if mode == "several devices" else "SingleDeviceStrategy"

    def action(name: str, start_us: int, duration_us: int) -> None:
        builder.annotation(f"[pl][profile]{name}", start_us, duration_us)

    for n, at in enumerate(builder.steps(STEPS, STEP)):
        if n:  # the backward pass and the update of the batch before
            action(f"[Strategy]{strategy}.backward", at + 90, BACKWARD + 20)
            builder.op("autograd::engine::evaluate_function: AddmmBackward0", at + 100, BACKWARD)
            for k in range(20):
                builder.op("aten::addcdiv_", at + 6200 + UPDATE * k // 20, 15)
        action(f"[{LOOPS[version]}].train_dataloader_next", at + 7000, 500)
        builder.annotation(FETCH, at + 7010, 480)
        action(f"[Strategy]{strategy}.batch_to_device", at + 7600, 100)
        last = n == STEPS - 1
        length = tail_us + 2000 if last else 2000 + 6700
        if mode == "manual":  # the update follows the module's own closure: no step is around the forward
            length = tail_us - 6190 if last else 500
            at_step = at + STEP + 6190
        else:
            at_step = at + 8000
            action("run_training_batch", at_step - 60, length + 120)
            action("[LightningModule]Net.optimizer_step", at_step - 30, length + 60)
        builder.annotation("Optimizer.step#Adam.step", at_step, length)
        action(f"[Strategy]{strategy}.training_step", at + 8100, 1800)
        if mode == "modules":
            builder.annotation("[pl][module]torch.nn.modules.linear.Linear: net", at + 8150, FORWARD + 100)
        builder.op("aten::addmm", at + 8200, FORWARD)
    return builder


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
    optimizer = analyze_rank(recording(version, mode).build()).optimizer
    assert optimizer is not None
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
        found = vars(analyze_rank(recording(version, mode, tail_us=tail_us).build()))
        return {name: value for name, value in found.items() if name not in ("sources", "recording_ns")}

    assert sections(TAIL) == sections(2 * TAIL)
