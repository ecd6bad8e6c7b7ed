"""All rules, and the function that applies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lightning_perf.analysis.compilation.summary import CompileReport
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.analysis.steps.memory_growth import MemoryGrowth
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.findings.compilation.compile_cost import compile_cost
from lightning_perf.findings.compilation.cudagraph_skips import cudagraph_skips
from lightning_perf.findings.compilation.graph_breaks import graph_breaks
from lightning_perf.findings.compilation.recompiles import recompiles
from lightning_perf.findings.cpu.cpu_bf16 import cpu_bf16
from lightning_perf.findings.cpu.cpu_channels_last import cpu_channels_last
from lightning_perf.findings.cpu.cpu_overhead import cpu_overhead
from lightning_perf.findings.cpu.cpu_page_faults import cpu_page_faults
from lightning_perf.findings.cpu.cpu_pauses import cpu_pauses
from lightning_perf.findings.cpu.cpu_threads import cpu_threads
from lightning_perf.findings.finding import Finding, middle_of
from lightning_perf.findings.fit.leak import leak
from lightning_perf.findings.fit.long_validation import long_validation
from lightning_perf.findings.fit.slow_callback import slow_callback
from lightning_perf.findings.fit.slow_checkpoints import slow_checkpoints
from lightning_perf.findings.fit.slow_first_step import is_compilation, slow_first_step
from lightning_perf.findings.fit.slow_logger import slow_logger
from lightning_perf.findings.fit.worker_restarts import worker_restarts
from lightning_perf.findings.host.cold_start import cold_start
from lightning_perf.findings.host.host_work import host_work
from lightning_perf.findings.host.input_bound import input_bound
from lightning_perf.findings.host.launch_bound import launch_bound
from lightning_perf.findings.host.pageable_copies import pageable_copies
from lightning_perf.findings.host.periodic_steps import periodic_steps
from lightning_perf.findings.host.queued_stalls import queued_stalls
from lightning_perf.findings.host.small_kernels import small_kernels
from lightning_perf.findings.host.stop_flags import stop_flags
from lightning_perf.findings.host.sync_points import sync_points
from lightning_perf.findings.kernels.autocast_tax import autocast_tax
from lightning_perf.findings.kernels.channels_last import channels_last
from lightning_perf.findings.kernels.cudnn_benchmark import cudnn_benchmark
from lightning_perf.findings.kernels.half_precision import half_precision
from lightning_perf.findings.kernels.tensor_cores import tensor_cores
from lightning_perf.findings.kernels.tf32_off import tf32_off
from lightning_perf.findings.kernels.unfused_optimizer import unfused_optimizer
from lightning_perf.findings.memory.activations import activations
from lightning_perf.findings.memory.allocator import allocator
from lightning_perf.findings.memory.fragmentation import fragmentation
from lightning_perf.findings.memory.memory_full import memory_full
from lightning_perf.findings.memory.memory_spare import memory_spare
from lightning_perf.findings.memory.optimizer_state import optimizer_state
from lightning_perf.findings.model.attention_math import attention_math
from lightning_perf.findings.model.padding import padding
from lightning_perf.findings.model.recompute import recompute
from lightning_perf.findings.ranks.data_parallel import data_parallel
from lightning_perf.findings.ranks.exposed_communication import exposed_communication, exposed_ns
from lightning_perf.findings.ranks.rank_imbalance import rank_imbalance

__all__ = [
    "COMPILE_RULES",
    "FIT_RULES",
    "GROWTH_RULES",
    "LOG_RULES",
    "RULES",
    "RUN_RULES",
    "CompileRule",
    "FitRule",
    "GrowthRule",
    "LogRule",
    "Rule",
    "RunRule",
    "find",
    "find_in_fit",
]

Rule = Callable[[RankAnalysis], "Finding | None"]
RunRule = Callable[[Distributed], "Finding | None"]
FitRule = Callable[[FitTime], "Finding | None"]
CompileRule = Callable[[CompileReport], "Finding | None"]
GrowthRule = Callable[[MemoryGrowth], "Finding | None"]
LogRule = Callable[[StepTimes, "RankAnalysis | None"], "Finding | None"]

RULES: tuple[Rule, ...] = (
    activations,
    allocator,
    attention_math,
    autocast_tax,
    channels_last,
    cold_start,
    cpu_bf16,
    cpu_channels_last,
    cpu_overhead,
    cpu_page_faults,
    cpu_pauses,
    cpu_threads,
    cudnn_benchmark,
    data_parallel,
    exposed_communication,
    fragmentation,
    half_precision,
    host_work,
    input_bound,
    launch_bound,
    memory_full,
    memory_spare,
    optimizer_state,
    padding,
    pageable_copies,
    queued_stalls,
    recompute,
    small_kernels,
    stop_flags,
    sync_points,
    tensor_cores,
    tf32_off,
    unfused_optimizer,
)


RUN_RULES: tuple[RunRule, ...] = (rank_imbalance,)
"""Rules that compare ranks with each other."""

LOG_RULES: tuple[LogRule, ...] = (periodic_steps,)
"""Rules about the step log of the whole run, which `lightning_perf.findings.whole_run` applies."""

FIT_RULES: tuple[FitRule, ...] = (
    long_validation,
    slow_callback,
    slow_checkpoints,
    slow_first_step,
    slow_logger,
    worker_restarts,
)
"""Rules about the account of a whole fit."""

COMPILE_RULES: tuple[CompileRule, ...] = (compile_cost, cudagraph_skips, graph_breaks, recompiles)
"""Rules about the compilations of a whole fit."""


GROWTH_RULES: tuple[GrowthRule, ...] = (leak,)
"""Rules about the memory of a whole fit over time."""


def _flag_ns(analysis: RankAnalysis) -> float:
    flags = analysis.stop_flags
    return 0.0 if flags is None else flags.exposed_ns / max(flags.steps, 1)


SHARED_WAITS: dict[Rule, Callable[[RankAnalysis], float]] = {exposed_communication: exposed_ns, stop_flags: _flag_ns}
"""Rules about waits that end for all ranks at once, and the length of a rank's waits. The rank that arrives last has
only the transfer, and the others also wait for that rank. The rank with the shortest waits therefore decides."""


def find(ranks: Iterable[RankAnalysis], distributed: Distributed | None = None) -> tuple[Finding, ...]:
    """Apply every rule to every rank, and those of the run to all ranks together.

    A truncated recording has no findings: its device events are missing, and rules need shares of time. If several
    ranks have the same finding, the one with the most to save is kept.

    Args:
        ranks: The analyses of the ranks.
        distributed: The comparison of the ranks; ``None`` for a run of one rank.

    Returns:
        Findings, the most to save first. Those without an estimate come last.
    """
    sound = [analysis for analysis in ranks if not analysis.breakdown.truncated]
    findings = []
    for rule in RULES:
        wait_ns = SHARED_WAITS.get(rule)
        asked = sound if wait_ns is None or not sound else [min(sound, key=wait_ns)]
        found = [finding for analysis in asked if (finding := rule(analysis)) is not None]
        if found:
            findings.append(max(found, key=_weight))
    if distributed is not None:
        findings += [finding for rule in RUN_RULES if (finding := rule(distributed)) is not None]
    return tuple(sorted(findings, key=lambda finding: (*(-part for part in _weight(finding)), finding.kind)))


def find_in_fit(
    fit: FitTime | None, *, compilation: CompileReport | None = None, growth: MemoryGrowth | None = None
) -> tuple[Finding, ...]:
    """Apply every rule about a whole fit.

    Args:
        fit: Where the time of the fit went; None without an account.
        compilation: The compilations of the fit; None without any.
        growth: The memory of the fit over time; None if it was not recorded.

    Returns:
        Findings, the most to save first. Their savings are of the fit, not per step.
    """
    findings = []
    if compilation is not None:
        findings = [finding for rule in COMPILE_RULES if (finding := rule(compilation)) is not None]
    if fit is not None:
        # A first step that compiles is the same lost time as the cost of compilation.
        explained = any(finding.kind == "compile-cost" for finding in findings) and is_compilation(fit)
        rules = [rule for rule in FIT_RULES if rule is not slow_first_step or not explained]
        findings += [finding for rule in rules if (finding := rule(fit)) is not None]
    if growth is not None:
        findings += [finding for rule in GROWTH_RULES if (finding := rule(growth)) is not None]
    return tuple(sorted(findings, key=lambda finding: (*(-part for part in _weight(finding)), finding.kind)))


def _weight(finding: Finding) -> tuple[float, float]:
    if finding.saving_low_ms is None or finding.saving_high_ms is None:
        return (-1.0, -1.0)
    return (middle_of(finding.saving_low_ms, finding.saving_high_ms), finding.saving_high_ms)
