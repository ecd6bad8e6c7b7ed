"""The fixes of findings hold inside Lightning, and name the user's code if the recording has stacks."""

from __future__ import annotations

import inspect
import re

import pytest

from lightning_perf import PerfCallback
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.host import host_work, sync_points
from lightning_perf.findings.kernels import cudnn_benchmark
from lightning_perf.findings.precision import autocast_tax
from lightning_perf.findings.ranks import SEND_LESS, exposed_communication
from lightning_perf.findings.registry import find
from tests.findings.examples import EXAMPLES
from tests.findings.recordings import analysis, reducing, training
from tests.findings.test_host import pausing, waiting
from tests.support.trace_builder import TraceBuilder


def example(rule: str) -> Finding:
    report = EXAMPLES[rule].analyze(None)
    return next(finding for finding in (*report.findings, *report.fit_findings) if finding.kind == rule)


def repeated_casts() -> TraceBuilder:
    """A weight that each step casts eight times, and one gradient that is accumulated."""
    builder = training()
    for step in range(4):
        start = step * 10_020 + 640
        for number in range(8):
            at = start + 20 * number
            builder.op("aten::copy_", at, 10, types=["c10::BFloat16", "float"], dims=[[512, 512], [512, 512]])
            builder.launch(
                "copy_kernel", call_us=at + 2, call_duration_us=3,
                start_us=step * 10_020 + 5000 + 200 * number, duration_us=190, stream=8,
            )  # fmt: skip
        builder.op("torch::autograd::AccumulateGrad", start + 300, 10, types=["float"], dims=[[512, 512]])
    return builder


def test_autocast_s_cache_is_turned_on_by_the_callback() -> None:
    finding = autocast_tax(analysis(repeated_casts()))
    assert finding is not None
    assert 'PerfCallback(precision="bf16-mixed")' in finding.action
    assert "without precision in the Trainer" in finding.action
    assert "7 casts per step of a weight that was already cast" in finding.evidence[0]


def test_tf32_names_the_callback_s_option() -> None:
    assert 'PerfCallback(tf32="on")' in example("tf32-off").action


def test_cudnn_s_measurements_are_turned_off_by_the_trainer() -> None:
    finding = cudnn_benchmark(analysis(waiting(400, 200, "aten::conv2d", "cudaEventSynchronize")))
    assert finding is not None
    assert "Trainer(benchmark=False)" in finding.action
    assert "torch.backends" not in finding.action


def test_no_fsdp_setting_is_advised_that_is_a_default() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp").FullyShardedDataParallel
    defaults = inspect.signature(fsdp).parameters
    for name, value in re.findall(r"(\w+)=(True|False|\w+)", SEND_LESS["FullyShardedDataParallel"]):
        assert name not in defaults or str(defaults[name].default) != value
    assert "backward_prefetch" not in SEND_LESS["FullyShardedDataParallel"]
    assert "limit_all_gathers" not in SEND_LESS["FullyShardedDataParallel"]
    finding = exposed_communication(analysis(reducing(900)))
    assert finding is not None
    assert "accumulate_grad_batches" in finding.action


def test_the_way_around_stop_flags_is_said_to_be_private() -> None:
    action = example("stop-flags").action
    assert "The method is private" in action
    assert action.index("raise batch_size") < action.index("_TrainingEpochLoop")


@pytest.mark.parametrize("rule", ["host-work", "queued-stalls", "rank-imbalance"])
def test_these_have_an_action_with_something_to_run_or_set(rule: str) -> None:
    found = [finding for finding in find([analysis(pausing(1000))]) if finding.kind == rule]
    action = found[0].action if found else ""
    if rule == "rank-imbalance":
        action = example(rule).action
    if rule == "queued-stalls":
        from lightning_perf.findings.host import queued_stalls
        from tests.findings.test_host import stalled

        stall = queued_stalls(analysis(stalled(6000)))
        assert stall is not None
        action = stall.action
    assert re.search(r"Trainer\(\w+=|DataLoader\(|nvidia-smi|lightning-perf view", action)


def test_stacks_are_advised_where_they_are_missing_and_shown_where_they_are_not() -> None:
    assert inspect.signature(PerfCallback).parameters["with_stack"]
    without = sync_points(analysis(waiting(400, 200)))
    assert without is not None
    assert "PerfCallback(with_stack=True)" in without.action
    builder = waiting(400, 200)
    builder.top_level["with_stack"] = 1
    for step in range(3):
        builder.host("python_function", "train.py(20): training_step", 1000 * step, 900)
        builder.host("python_function", "torch/_tensor.py(5): item", 1000 * step + 90, 420)
    with_stacks = sync_points(analysis(builder))
    assert with_stacks is not None
    assert "in training_step (train.py:20)" in with_stacks.evidence[0]
    assert with_stacks.action.startswith("Look at training_step (train.py:20).")
    assert "with_stack" not in with_stacks.action


def test_host_work_names_the_function_between_batches() -> None:
    without = host_work(analysis(pausing(1500)))
    assert without is not None
    assert "PerfCallback(with_stack=True)" in without.action
    builder = pausing(1500)
    builder.top_level["with_stack"] = 1
    for start in range(0, 4 * 11_500, 11_500):
        builder.host("python_function", "log.py(3): write_images", start + 9_500, 1_900)
    finding = host_work(analysis(builder))
    assert finding is not None
    assert finding.action.startswith("Look at write_images (log.py:3).")
    assert "with_stack" not in finding.action


def test_titles_and_evidence_count_in_english() -> None:
    for rule, given in EXAMPLES.items():
        if given.corpus:
            continue
        found = example(rule)
        for text in (found.title, *found.evidence, found.action, found.model):
            assert not re.search(r"(?<![\d.,])1 (launches|kernels|copies|casts|gaps|operators|cores|threads)\b", text)
            assert " a step" not in text.replace("as a step has", "")
