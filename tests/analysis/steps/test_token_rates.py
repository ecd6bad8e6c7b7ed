"""Tokens per second of a run, of a row of a logger, and of several windows together."""

import pytest

from lightning_perf.analysis.model.attention import language_model
from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.callbacks.trainer_log import step_metrics
from lightning_perf.run_files.steps import StepSample
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.description import TOKENS_KEY
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def samples(*tokens: int | None) -> list[StepSample]:
    return [StepSample(step, 100 * MS, 0, None, 4, False, count) for step, count in enumerate(tokens)]


def test_steps_without_tokens_do_not_dilute_the_rate() -> None:
    assert summarize_step_times(samples(64, None, 32), warmup_steps=0).tokens_per_second == pytest.approx(480)
    assert summarize_step_times(samples(None, None)).tokens_per_second is None
    assert step_metrics(samples(64, None, 32))["perf/tokens_per_s"] == pytest.approx(480)
    assert "perf/tokens_per_s" not in step_metrics(samples(None))


def window(start_us: int, **tokens: int) -> TraceBuilder:
    builder = TraceBuilder(**{TOKENS_KEY: tokens})
    return builder.step(start_us, start_us, 100).op("aten::mm", start_us + 10, 50, dims=[[2, 3], [3, 4]])


def test_tokens_of_several_windows_are_summed() -> None:
    first = window(0, steps=1, tokens=10, counted=20, padding=5, parameters=7).build()
    second = window(1000, steps=1, tokens=30).build()
    model = known(language_model(concatenate([first, second]), None, None))
    assert (model.tokens_per_step, model.padding, model.parameters) == (20, 0.25, 7)
    assert model.tokens_per_second == pytest.approx(40 / 200e-6)
    assert model.flops_per_token == pytest.approx(2 * 48 / 40)
    assert model.formula_flops_per_token == 42
