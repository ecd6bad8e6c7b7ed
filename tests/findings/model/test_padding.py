"""The rule for padding, on recordings with a known share of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.findings.model import padding
from lightning_perf.findings.whole_run import check_findings
from lightning_perf.trace.description import Processor
from lightning_perf.trace.metadata import TOKENS_KEY
from tests.findings.host_recordings import on_processor
from tests.support.trace_builder import TraceBuilder

STEP_US = 1000
PARTS = {"forward": (0, 300), "backward": (300, 500), "optimizer": (800, 200)}


def padded(share: float, *, beyond: float = 0.0) -> TraceBuilder:
    """Three steps on a processor: 300 µs of forward, 500 µs of backward and 200 µs of the optimizer."""
    builder = on_processor()
    builder.top_level[TOKENS_KEY] = {
        "steps": 3,
        "tokens": 3000,
        "counted": 2000,
        "padding": round(2000 * share),
        "beyond_longest": round(2000 * beyond),
    }
    for step in range(3):
        builder.step(step, step * STEP_US, STEP_US)
        for phase, (start_us, duration_us) in PARTS.items():
            builder.annotation(f"perf::{phase}", step * STEP_US + start_us, duration_us)
            builder.op("aten::mm", step * STEP_US + start_us, duration_us, dims=[[8, 8], [8, 8]])
    return builder


def test_half_padding_saves_a_quarter_to_a_half_of_forward_and_backward() -> None:
    found = padding(analyze_rank(padded(0.5).build()))
    assert found is not None
    assert found.title == "Padding: 50.0 % of the tokens in a batch are padding"
    assert found.saving_low_ms == pytest.approx(0.25 * 0.8)
    assert found.saving_high_ms == pytest.approx(0.5 * 0.8)
    assert "About 500 of 1,000 tokens per step" in found.evidence[0]
    assert "Pack several sequences" in found.action


def test_columns_that_no_row_needs_have_a_simpler_fix() -> None:
    found = padding(analyze_rank(padded(0.5, beyond=0.4).build()))
    assert found is not None
    assert "40.0 % of the tokens lie beyond the longest" in found.evidence[1]
    assert "Pad each batch to its own longest sequence" in found.action


@pytest.mark.parametrize("share", [0.0, 0.03])
def test_little_padding_is_no_finding(share: float) -> None:
    assert padding(analyze_rank(padded(share).build())) is None


def test_a_busy_machine_does_not_change_the_number_of_tokens() -> None:
    analysis = analyze_rank(padded(0.5).build())
    processor = Processor(cores=2, threads=2, cpus=2, machine_cpus=2, load=9.0, core_wait=0.6, trains=True)
    busy = replace(analysis, metadata=replace(analysis.metadata, processor=processor))
    found = padding(busy)
    assert found is not None
    checked = check_findings([found], [busy], lead=busy)
    assert [finding.kind for finding in checked.findings] == ["padding"]
    assert not checked.held_back


def test_without_tokens_there_is_none() -> None:
    builder = padded(0.5)
    del builder.top_level[TOKENS_KEY]
    assert padding(analyze_rank(builder.build())) is None


def test_damaged_counts_are_no_padding() -> None:
    builder = padded(0.5)
    builder.top_level[TOKENS_KEY] |= {"padding": 5000}
    model = analyze_rank(builder.build()).language_model
    assert model is not None
    assert model.padding is None
    builder.top_level[TOKENS_KEY] = {"steps": 0, "tokens": -4}
    assert analyze_rank(builder.build()).language_model is None
