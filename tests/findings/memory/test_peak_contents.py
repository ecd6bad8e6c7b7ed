"""The rules about the contents of a scarce memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.memory import activations, fragmentation, optimizer_state
from lightning_perf.findings.registry import find
from lightning_perf.trace.tensors import TENSORS_KEY
from tests.findings.examples import holding
from tests.findings.recordings import analysis, training
from tests.support.trace_builder import TraceBuilder

Rule = Callable[[RankAnalysis], "Finding | None"]


@pytest.mark.parametrize(
    ("rule", "parts", "fires"),
    [
        # Of 40 GiB, 28 are scarce. The shares are those of the bytes in tensors.
        (activations, {"parameters": 16, "activations": 12}, True),
        (activations, {"parameters": 18, "activations": 10}, False),
        (activations, {"activations": 27}, False),
        (activations, {"parameters": 28}, False),
        (optimizer_state, {"parameters": 19, "optimizer_state": 9}, True),
        (optimizer_state, {"parameters": 20, "optimizer_state": 8}, False),
        (optimizer_state, {"optimizer_state": 27}, False),
        (optimizer_state, {"parameters": 28}, False),
        (fragmentation, {"parameters": 22, "fragmentation": 6}, True),
        (fragmentation, {"parameters": 24, "fragmentation": 5}, False),
        (fragmentation, {"parameters": 10, "fragmentation": 17}, False),
        (fragmentation, {"parameters": 28}, False),
    ],
)
def test_thresholds(rule: Rule, parts: dict[str, int], fires: bool) -> None:
    found = rule(analysis(holding(**parts)))
    assert (found is not None) == fires
    if found is not None:
        assert (found.saving_low_ms, found.saving_high_ms) == (None, None)


def test_the_modules_to_checkpoint() -> None:
    finding = activations(analysis(holding(parameters=8, activations=24)))
    assert finding is not None
    # Each of two blocks holds 12 pieces of 1 GiB. One block is computed at a time, and each may keep one as its input.
    assert "2 modules of class Block hold 24.0 GiB" in finding.evidence[1]
    assert "saves 10.0 GiB to 12.0 GiB and costs about" in finding.evidence[1]
    assert "activation_checkpointing_policy={Block}" in finding.action


def test_modules_are_not_named_without_stacks() -> None:
    builder = holding(parameters=8, activations=24)
    builder.events = [event for event in builder.events if event.get("cat") != "python_function"]
    finding = activations(analysis(builder))
    assert finding is not None
    assert len(finding.evidence) == 1
    assert "with_stack=True" in finding.action


def test_sharding_the_state() -> None:
    finding = optimizer_state(analysis(holding(parameters=8, gradients=8, optimizer_state=16).rank(0, 4)))
    assert finding is not None
    assert "each rank keeps 4.00 GiB of it" in finding.evidence[1]


def test_a_host_is_measured_by_its_free_memory() -> None:
    def recording(available: int) -> TraceBuilder:
        builder = training()
        lists = {"optimizer_state": [[-1, 7, 500]], "parameters": [[-1, 8, 250]]}
        builder.top_level[TENSORS_KEY] = {"start": lists, "end": lists, "available_bytes": {"-1": available}}
        builder.top_level["lightning_perf.loader"] = {"kind": "map", "batch_size": 4}
        return builder.memory(50, 10, address=9, device_type=0, device=-1)

    assert optimizer_state(analysis(recording(1000))) is not None
    assert optimizer_state(analysis(recording(1200))) is None


def test_a_device_that_is_not_scarce_has_none_of_them() -> None:
    kinds = {finding.kind for finding in find([analysis(holding(parameters=4, optimizer_state=8, activations=8))])}
    assert not kinds & {"activations", "optimizer-state", "fragmentation", "memory-full"}
