"""Predictions on the recordings of others, against recordings after the change (``benchmarks/savings/pairs.py``)."""

import statistics
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.report.document import PerfReport
from tests.findings.recordings import saving_of


def recorded(corpus: Path, name: str) -> PerfReport:
    path = corpus / "traces" / "pairs" / name
    if not path.is_file():
        pytest.skip(f"needs {path}: docs/corpus.md")
    return lightning_perf.analyze(path)


def median_ms(report: PerfReport) -> float:
    return statistics.median(step.wall_ns / 1e6 for step in report.ranks[0].breakdown.steps)


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["410efe7", "a73da0d", "9ab058c"])
def test_tf32_of_convolutions_and_attention_hides_no_products_without(corpus: Path, name: str) -> None:
    # Segment Anything in FP32: cuDNN and memory-efficient attention run in TF32, half a second of products does not.
    before = recorded(corpus, f"segment_anything/asdf_False.{name}.json.gz")
    assert {"half-precision", "tf32-off"} <= {finding.kind for finding in before.findings}
    assert "tensor-cores" not in {finding.kind for finding in before.findings}


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("before", "after"), [("a73da0d", "10b61b2"), ("9ab058c", "3b766a9")], ids=["small operators", "few operators"]
)
def test_a_host_that_waits_in_synchronizing_operators_keeps_no_prediction_back(
    corpus: Path, before: str, after: str
) -> None:
    slow = recorded(corpus, f"segment_anything/asdf_False.{before}.json.gz")
    fast = recorded(corpus, f"segment_anything/asdf_True.{after}.json.gz")
    advice = next(finding for finding in slow.findings if finding.kind == "half-precision")
    gain_ms = median_ms(slow) - median_ms(fast)  # of bf16 and of compiling
    low_ms, high_ms = saving_of(advice)
    assert low_ms <= gain_ms
    assert high_ms >= gain_ms / 2
