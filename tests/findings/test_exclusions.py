"""What excludes torch.compile, CUDA graphs and larger batches, in every rule that proposes them."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.cpu import cpu_overhead
from lightning_perf.findings.host import launch_bound, small_kernels
from lightning_perf.findings.kernels import autocast_tax
from lightning_perf.run_files.probe import Probe, ProbedChange
from lightning_perf.trace.description import DataLoading
from tests.findings.recordings import Rule, analysis, finding_of
from tests.findings.test_cpu import calling
from tests.findings.test_host import eager, queued
from tests.findings.test_kernels import casting
from tests.support.trace_builder import TraceBuilder

RULES: dict[str, tuple[Rule, Callable[[], TraceBuilder]]] = {
    "autocast-tax": (autocast_tax, lambda: casting(20)),
    "cpu-overhead": (cpu_overhead, lambda: calling(5, 20)),
    "launch-bound": (launch_bound, lambda: eager(5)),
    "small-kernels": (small_kernels, queued),
}


def with_probe(recorded: RankAnalysis) -> RankAnalysis:
    """A rank in which a probe found gains for compiled calls and CUDA graphs."""
    step_ns = recorded.breakdown.wall.mean_ns or 0.0
    changes = [
        ProbedChange(name, name, 0.5 * step_ns, 0.4 * step_ns, 0.6 * step_ns, 0.0, step_ns, 9)
        for name in ("compile", "cuda-graph")
    ]
    return replace(recorded, probe=Probe("A device", 0, (), step_ns, step_ns, step_ns, 5.0, tuple(changes)))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("probed", [False, True])
def test_a_second_derivative_excludes_compilation_and_graphs(name: str, probed: bool) -> None:
    rule, build = RULES[name]
    recorded = with_probe(analysis(build())) if probed else analysis(build())
    usual = finding_of(rule, recorded)
    assert "torch.compile(model" in usual.action
    twice = rule(replace(recorded, workload=replace(recorded.workload, second_derivative=True)))
    assert twice is None or "torch.compile" not in twice.action
    assert (twice is None) == (name == "small-kernels")  # nothing else helps


@pytest.mark.parametrize("name", RULES)
def test_a_compiled_model_is_not_compiled_again(name: str) -> None:
    rule, build = RULES[name]
    recorded = analysis(build())
    compiled = finding_of(rule, replace(recorded, workload=replace(recorded.workload, compiled_share=0.25)))
    assert "torch.compile(model)" not in compiled.action
    assert ('mode="reduce-overhead"' in compiled.action) == (name in ("launch-bound", "small-kernels"))


@pytest.mark.parametrize(("batches", "grows"), [(None, True), (2, True), (1, False)])
def test_a_batch_of_the_whole_data_set_does_not_grow_on_a_device(batches: int | None, grows: bool) -> None:
    recorded = analysis(eager(5))
    facts = DataLoading(kind="map", batches_per_epoch=batches)
    finding = finding_of(launch_bound, replace(recorded, metadata=replace(recorded.metadata, loader=facts)))
    assert ("raise batch_size" in finding.action) == grows
