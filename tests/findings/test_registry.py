"""All rules together: order, ranks, severity, recordings of inference, and real ones."""

import gzip
import json
import re
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.findings.finding import Finding, Problem, SavingRange, Severity, make_finding, rule, severity_of
from lightning_perf.findings.whole_run import find
from tests.findings.recordings import FP32_GEMM, analysis, reducing, saving_of, training
from tests.findings.test_host import eager, waiting
from tests.findings.test_memory import reserving
from tests.support.trace_builder import FETCH, TraceBuilder


def test_a_saving_is_limited_by_its_part() -> None:
    problem = Problem("", (), "", SavingRange((30.0, 60.0), ""))
    found = make_finding("launch-bound", problem, whole_ns=100.0, most_ns=40.0, rank=None)
    assert (found.saving_low_ms, found.saving_high_ms) == (30e-6, 40e-6)


def kinds(*builders: TraceBuilder) -> list[str]:
    return [finding.kind for finding in find(map(analysis, builders))]


def test_a_healthy_training_has_no_finding_on_a_device_or_the_host() -> None:
    assert kinds(training()) == []
    builder = TraceBuilder()
    for start in builder.steps(4, 1000):
        builder.annotation(FETCH, start, 20)
        builder.op("aten::mm", start + 20, 960)
    assert kinds(builder) == []


def test_a_training_on_the_host_is_never_told_of_devices() -> None:
    builder = TraceBuilder()
    for start in builder.steps(4, 1000):
        builder.annotation(FETCH, start, 500)
        builder.op("aten::mm", start + 500, 200)
        builder.annotation("Optimizer.step#Adam.step", start + 700, 300)
        builder.op("aten::add_", start + 700, 300)
    assert kinds(builder) == ["input-bound", "unfused-optimizer"]
    told = find([analysis(builder)])[1]
    assert not any(word in f"{told.title}{told.evidence}{told.action}" for word in ("device", "launch", "16-mixed"))


def test_of_several_ranks_the_one_with_most_to_save_speaks() -> None:
    ranks = [training(fetch_us=2000).rank(0, 2), training(fetch_us=4000).rank(1, 2)]
    findings = find(map(analysis, ranks))
    assert [(finding.kind, finding.rank) for finding in findings] == [("input-bound", 1)]


def test_waiting_for_a_slow_rank_is_no_fault_of_the_network() -> None:
    # Rank 1 computes 800 µs longer; the others' collectives take as much longer, its own have only the transfer.
    uneven = [reducing(900, compute_us=600), reducing(100, rank=1, compute_us=1400)]
    (finding,) = [f for f in find(map(analysis, uneven)) if f.kind == "exposed-communication"]
    assert (finding.rank, finding.saving_high_ms) == (1, pytest.approx(0.1, rel=0.01))
    nothing_exposed = [reducing(900, compute_us=600), reducing(30, rank=1, compute_us=1470)]
    assert "exposed-communication" not in kinds(*nothing_exposed)
    # Rank 0 can hide less, since it computes less, but waits longer: mostly for rank 1.
    (other,) = find(map(analysis, [reducing(900, compute_us=100), reducing(300, rank=1, compute_us=700)]))
    assert (other.kind, other.rank) == ("exposed-communication", 1)
    assert other.saving_high_ms == pytest.approx(0.3, rel=0.01)


def test_a_truncated_recording_has_no_finding(tmp_path: Path) -> None:
    path = training(fetch_us=5000).write(tmp_path / "trace.json")
    assert [finding.kind for finding in lightning_perf.analyze(path).findings] == ["input-bound"]
    text = path.read_text()
    path.write_text(text[: len(text) - 300])
    assert lightning_perf.analyze(path).findings == ()


def test_savings_are_intervals_within_the_step() -> None:
    for builder in (training(fetch_us=4000), training(fetch_us=3000, kernel=FP32_GEMM, dtype="float")):
        result = analysis(builder)
        findings = find([result])
        middles = [sum(saving_of(finding)) for finding in findings]
        assert middles == sorted(middles, reverse=True), "the most to save comes first"
        for finding in findings:
            low_ms, high_ms = saving_of(finding)
            assert 0 <= low_ms <= high_ms <= (result.breakdown.wall.mean_ns or 0) / 1e6
            assert finding.evidence
            assert finding.model


def test_every_rule_takes_an_empty_recording() -> None:
    empty = analysis(TraceBuilder().op("aten::mm", 0, 0))
    assert rule.find(empty) == []


EXPECTED = {
    # Real recordings, and what an engineer sees in them: the loader works in the training process on a V100 in FP32 …
    "kineto/resnet50_num_workers_0/worker0.1623143089861.769c3eb.pt.trace.json.gz": {"input-bound", "half-precision"},
    # … an H100 runs a small model at batch 1 …
    "tracelens/h100/gaunernst_bert-small-uncased__1016001.737b43a.json.gz": {"launch-bound"},
    # … and the very first steps allocate all memory.
    "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.941dea2.json.gz": {"allocator"},
}


@pytest.mark.corpus
@pytest.mark.parametrize(("file", "high"), EXPECTED.items())
def test_real_recordings(corpus: Path, file: str, high: set[str]) -> None:
    findings = lightning_perf.analyze(corpus / "traces" / file).findings
    found = {finding.kind for finding in findings if finding.severity == "high"}
    assert high <= found


@pytest.mark.corpus
def test_a_prediction_holds_in_the_recording_after_the_change(corpus: Path) -> None:
    # The same training with num_workers=0, and with num_workers=4 as the finding advises.
    folder = corpus / "traces" / "kineto"
    before = lightning_perf.analyze(next((folder / "resnet50_num_workers_0").glob("worker0.162*")))
    after = lightning_perf.analyze(folder / "resnet50_num_workers_4")
    advice = next(finding for finding in before.findings if finding.kind == "input-bound")
    assert "num_workers=4" in advice.action
    assert "input-bound" not in {finding.kind for finding in after.findings}
    first, second = (report.ranks[0].breakdown.wall.mean_ns for report in (before, after))
    assert first is not None
    assert second is not None
    low_ms, high_ms = saving_of(advice)
    assert low_ms <= (first - second) / 1e6 <= high_ms


@pytest.mark.corpus
def test_a_training_whose_optimizer_runs_the_closure_is_told_the_same(corpus: Path, tmp_path: Path) -> None:
    # As under Lightning's automatic optimization: the mark of the optimizer's step lies around the whole step.
    plain = next((corpus / "traces" / "kineto" / "resnet50_num_workers_0").glob("worker0.162*"))
    with gzip.open(plain) as file:
        document = json.load(file)
    host = [event for event in document["traceEvents"] if event.get("ph") == "X" and event.get("cat") == "Operator"]
    loads = [event["ts"] + event["dur"] for event in host if event["name"].startswith("enumerate(DataLoader)")]
    steps = [event for event in host if event["name"].startswith("Optimizer.step#")]
    for event in steps:
        start = max(end for end in loads if end < event["ts"])
        event["dur"] += event["ts"] - start
        event["ts"] = start
    assert len(steps) == 6
    (tmp_path / "closure.json").write_text(json.dumps(document), encoding="utf-8")
    first, second = (lightning_perf.analyze(path).findings for path in (plain, tmp_path / "closure.json"))
    assert [finding.kind for finding in second] == [finding.kind for finding in first]
    for one, other in zip(first, second, strict=True):
        # What lay outside of all phases, 0.2 % of the step, is the optimizer's now.
        assert other.saving_high_ms == pytest.approx(one.saving_high_ms, rel=0.05)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 5e6, "high"),  # no more than the step can be saved
        (0, 30, "high"),
        (0, 29.9, "moderate"),
        (0, 20, "moderate"),  # up to a fifth of the step, and perhaps nothing
        (15, 15, "high"),
        (10, 19.9, "moderate"),
        (0, 10, "moderate"),
        (0, 9.9, "low"),
        (5, 5, "moderate"),
        (3, 3, "low"),
    ],
)
def test_by_the_middle_of_the_estimate_in_percent_of_the_step(low: float, high: float, expected: Severity) -> None:
    assert severity_of(low, high, 100) == expected
    problem = Problem("", (), "", SavingRange((low * 1e4, high * 1e4), ""))
    made = make_finding("launch-bound", problem, whole_ns=1e6, rank=None)
    assert (made.severity, made.saving_high_ms) == (expected, pytest.approx(min(high / 100, 1.0)))
    assert severity_of(low, high, 0) == "low"  # a step without a length has nothing to save


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
