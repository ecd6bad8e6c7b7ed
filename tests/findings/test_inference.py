"""Recordings of inference, and the fixes for them; fixes that change results, for all rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.registry import find
from tests.findings.examples import EXAMPLES, example_text
from tests.findings.recordings import FP32_GEMM, analysis, training
from tests.findings.test_host import eager, waiting
from tests.findings.test_memory import reserving
from tests.support.trace_builder import TraceBuilder

OF_TRAINING = re.compile(r"Trainer|Callback|learning rate|training_step|self\.log|logg|epoch|accumulate|loss", re.I)
"""Words of advice that a forward pass has no use for."""


def layered(builder: TraceBuilder, *further: str) -> TraceBuilder:
    """A recording with a layer in it, and operators that show a training."""
    for name in ("aten::linear", *further):
        builder.op(name, 1, 2)
    return builder


RECORDINGS = {
    "half-precision": lambda: training(kernel="ampere_sgemm_tf32_128x64", dtype="float"),
    "tf32-off": lambda: training(kernel=FP32_GEMM, dtype="float"),
    "sync-points": lambda: waiting(400, 200),
    "launch-bound": lambda: eager(5),
    "memory-spare": lambda: eager(5).memory(1, 2**20, allocated=2**30, reserved=2**30),
    "memory-full": lambda: reserving(0.96),
    "cold-start": lambda: eager(5, call_us=400),
    "cudnn-benchmark": lambda: waiting(400, 200, "aten::conv2d", "cudaEventSynchronize"),
}


def found(builder: TraceBuilder, rule: str) -> Finding:
    return next(one for one in find([analysis(builder)]) if one.kind == rule)


@pytest.mark.parametrize("rule", RECORDINGS)
def test_inference_has_fixes_without_a_training(rule: str) -> None:
    fix = found(layered(RECORDINGS[rule]()), rule)
    assert not OF_TRAINING.search(fix.action + fix.changes), fix
    for training_mark in ("MmBackward0", "autograd::engine::evaluate_function: MmBackward0"):
        assert (
            OF_TRAINING.search(found(layered(RECORDINGS[rule](), training_mark), rule).action) or rule == "launch-bound"
        )


def test_a_recording_without_layers_may_be_of_anything() -> None:
    assert analysis(training()).workload.trains is None
    assert analysis(layered(training())).workload.trains is False
    assert analysis(layered(training()).annotation("Optimizer.step#SGD.step", 5, 1)).workload.trains is True
    assert (
        analysis(layered(training()).annotation("[pl][profile][Strategy]X.training_step", 5, 1)).workload.trains is True
    )


@pytest.mark.corpus
def test_published_recordings_of_inference_are_told_from_trainings(corpus: Path) -> None:
    trains = {
        path.name: lightning_perf.analyze(path).ranks[0].workload.trains
        for folder in ("tracelens/h100", "kineto/resnet50_num_workers_0")
        for path in (corpus / "traces" / folder).glob("*.json.gz")
    }
    assert len(trains) >= 4
    assert all(value == name.startswith("worker0") for name, value in trains.items())


CHANGED = re.compile(
    r'-mixed"|tf32="on"|batch_size|accumulate_grad_batches|drop_last|limit_val_batches|dropout_p=0|8bit|is_causal'
)
"""Settings with which a training computes something else."""

CHANGED_IN_PROSE = {"host-work", "slow-callback", "slow-checkpoints", "cpu-pauses", "worker-restarts"}
CHANGED_IN_PROSE |= {"activations", "rank-imbalance", "tensor-cores", "padding", "optimizer-state"}
"""Rules with such a fix in words."""


@pytest.mark.parametrize("rule", [rule for rule in EXAMPLES if not EXAMPLES[rule].corpus])
def test_a_fix_that_changes_results_says_so_first(rule: str) -> None:
    report = EXAMPLES[rule].analyze(None)
    fix = next(one for one in (*report.findings, *report.fit_findings) if one.kind == rule)
    assert bool(fix.changes) == bool(CHANGED.search(fix.action) or rule in CHANGED_IN_PROSE), fix.action
    text = " ".join(example_text(rule, report).split())
    assert bool(re.search(rf"\[{rule} · [^]]+\] Changes results: [^.]+\. ", text)) == bool(fix.changes)
    if report.findings[:1] == (fix,):
        assert report.verdict.next.startswith("Changes results: ") == bool(fix.changes)
