"""Settings for debugging: anomaly detection by its checks in the trace, and environment variables by their notes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import lightning_perf
from lightning_perf.findings.conditions import debug_settings
from lightning_perf.findings.whole_run import find
from lightning_perf.machine.environment import setting_facts
from lightning_perf.trace.description import SETTINGS_KEY
from lightning_perf.trace.reader import read_trace
from tests.findings.host_recordings import on_processor
from tests.findings.recordings import analysis, finding_of, saving_of, training
from tests.support.trace_builder import TraceBuilder

SETTINGS: dict[str, Any] = {"detect_anomaly": True, "deterministic": False, "cudnn_benchmark": False, "variables": []}


def checking(nodes: int = 4, **settings: Any) -> TraceBuilder:
    """Three steps of 10 ms on a processor: 5 ms of forward, and a backward in which each node checks for 50 µs."""
    builder = on_processor()
    builder.top_level[SETTINGS_KEY] = {**SETTINGS, **settings}
    for step in range(3):
        at = 10_000 * step
        builder.step(step, at, 10_000).annotation("perf::forward", at, 5000).annotation(
            "perf::backward", at + 5000, 4000
        )
        builder.op("aten::mm", at + 10, 4900)
        for node in range(nodes):
            start = at + 5100 + 200 * node
            builder.op("autograd::engine::evaluate_function: MmBackward0", start, 190, thread=2000)
            builder.op("MmBackward0", start + 5, 100, thread=2000).op("aten::mm", start + 10, 90, thread=2000)
            builder.op("aten::isnan", start + 110, 20, thread=2000).op("aten::ne", start + 112, 15, thread=2000)
            builder.op("aten::_is_any_true", start + 130, 20, thread=2000).op(
                "aten::item", start + 150, 10, thread=2000
            )
    return builder


def test_the_checks_of_anomaly_detection_are_measured() -> None:
    found = finding_of(debug_settings, checking())
    assert found.title == "A debug setting is on: anomaly detection"
    assert "4 tensors per step are checked for NaN in the backward pass, in 200 µs" in found.evidence[0]
    # The checks, and for each of 4 nodes a stack of 0.1 to 1 ms; at most 90 % of the forward pass.
    assert saving_of(found) == pytest.approx((0.2 + 0.4, 0.2 + 4.0))
    assert saving_of(finding_of(debug_settings, checking(nodes=20)))[1] == pytest.approx(20 * 0.05 + 0.9 * 5)
    assert "detect_anomaly=False" in found.action
    assert not found.changes
    unnoted = checking()
    del unnoted.top_level[SETTINGS_KEY]
    assert finding_of(debug_settings, unnoted).evidence == found.evidence


@pytest.mark.parametrize("anomalies", [True, False])
def test_the_checks_of_torch_itself_are_counted(tmp_path: Path, anomalies: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    path = tmp_path / "rank0.pt.trace.json"
    mode = torch.autograd.set_detect_anomaly(anomalies)
    with mode, profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorder:
        for step in range(2):
            with record_function(f"ProfilerStep#{step}"):
                loss = model(torch.ones(4, 8)).isnan().logical_not().float().mean() + model(torch.ones(4, 8)).mean()
                loss.backward()
    recorder.export_chrome_trace(str(path))
    found = debug_settings(lightning_perf.analyze(path).ranks[0])
    assert (found is not None) == anomalies
    checks = lightning_perf.analyze(path).ranks[0].anomaly_checks
    if checks is not None:
        assert checks.checks == checks.steps * _gradients(model)


def _gradients(model: nn.Sequential) -> int:
    """The gradients that torch passes to hooks of the nodes in a backward pass: each of them is checked."""
    counted = 0

    def count(_: Any, outputs: Any) -> None:
        nonlocal counted
        counted += 0 if outputs is None else sum(one is not None for one in outputs)

    loss = model(torch.ones(4, 8)).mean() + torch.zeros(())
    seen, stack = set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        node.register_hook(lambda gradients, _: count(None, gradients))
        stack += [following for following, _ in node.next_functions]
    loss.backward()
    return counted


@pytest.mark.parametrize(
    ("variables", "severity"),
    [
        (["CUDA_LAUNCH_BLOCKING=1"], "high"),
        (["NCCL_DEBUG=INFO", "TORCH_SHOW_CPP_STACKTRACES=1"], "low"),
        (["TORCH_DISTRIBUTED_DEBUG=DETAIL", "NCCL_DEBUG=trace"], "moderate"),
    ],
)
def test_variables_are_named(variables: list[str], severity: str) -> None:
    found = finding_of(debug_settings, checking(nodes=0, detect_anomaly=False, variables=variables))
    assert all(variable in found.title and variable in found.action for variable in variables)
    assert (found.severity, found.saving_high_ms) == (severity, None)


@pytest.mark.parametrize(("value", "held"), [("1", True), ("0", False)])
def test_blocking_launches_hold_other_findings_back(tmp_path: Path, value: str, held: bool) -> None:
    builder = training(fetch_us=5000)
    builder.top_level[SETTINGS_KEY] = {
        **SETTINGS,
        "detect_anomaly": False,
        "variables": [f"CUDA_LAUNCH_BLOCKING={value}"],
    }
    report = lightning_perf.analyze(builder.write(tmp_path / "trace.json"))
    assert [found.kind for found in report.findings] == (["debug-settings"] if held else ["input-bound"])
    assert [each.finding.kind for each in report.held_back] == (["input-bound"] if held else [])


@pytest.mark.parametrize("variable", ["CUDA_LAUNCH_BLOCKING=0", "NCCL_DEBUG=WARN", "NCCL_DEBUG=VERSION", "OTHER=1"])
def test_harmless_values_are_no_finding(variable: str) -> None:
    recorded = checking(nodes=0, detect_anomaly=False, deterministic=True, cudnn_benchmark=True, variables=[variable])
    assert debug_settings(analysis(recorded)) is None


def test_settings_by_choice_are_named_below_the_verdict(tmp_path: Path) -> None:
    recorded = checking(nodes=0, detect_anomaly=False, deterministic=True, cudnn_benchmark=True)
    report = lightning_perf.analyze(recorded.write(tmp_path / "trace.json"))
    assert (
        "1 thread on 8 cores · deterministic algorithms · cudnn.benchmark on · 3 recorded steps" in report.to_markdown()
    )
    assert not report.findings or report.findings[0].kind != "debug-settings"


def test_it_leads_although_others_save_more() -> None:
    builder = checking(nodes=1)
    for step in range(3):
        builder.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10_000 * step + 8000, 1900)
    first, second = find([analysis(builder)])[:2]
    assert first.kind == "debug-settings"
    assert saving_of(second)[1] > saving_of(first)[1]


def test_recordings_note_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    with torch.autograd.set_detect_anomaly(True):
        facts = setting_facts()
    builder = TraceBuilder(**{SETTINGS_KEY: facts}).op("aten::mm", 0, 10)
    settings = read_trace(builder.write(tmp_path / "trace.json")).metadata.settings
    assert settings is not None
    assert (settings.detect_anomaly, settings.deterministic, settings.variables) == (True, False, ("NCCL_DEBUG=INFO",))
