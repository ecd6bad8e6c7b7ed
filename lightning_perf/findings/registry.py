"""All rules, and the functions that apply them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from lightning_perf.analysis.compilation.summary import CompileReport
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.analysis.steps.growth import MemoryGrowth
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.findings.finding import Finding, by_saving
from lightning_perf.findings.fit import is_compilation
from lightning_perf.findings.inference import for_inference
from lightning_perf.findings.ranks import SHARED_WAITS
from lightning_perf.findings.rules import compile_rule, fit_rule, growth_rule, log_rule, rule, run_rule

TOPICS = (
    "compilation",
    "cpu",
    "fit",
    "host",
    "kernels",
    "loading",
    "memory",
    "model",
    "precision",
    "ranks",
    "settings",
    "steps",
)
for topic in TOPICS:
    import_module(f"lightning_perf.findings.{topic}")  # adds its rules

RULE_IDS = frozenset(
    rule_id for rules in (rule, run_rule, log_rule, fit_rule, compile_rule, growth_rule) for rule_id in rules.by_id
)
"""The IDs of all rules."""


def find(ranks: Iterable[RankAnalysis], distributed: Distributed | None = None) -> tuple[Finding, ...]:
    """Apply every rule to every rank, and those of the run to all ranks together: the most to save first.

    A truncated recording has no findings: its device events are missing, and rules need shares of time. If several
    ranks have the same finding, the one with the most to save is kept. Without an estimate, a finding comes last.
    """
    sound = [analysis for analysis in ranks if not analysis.breakdown.truncated]
    findings = []
    for rule_id, apply in rule.by_id.items():
        judged = [min(sound, key=SHARED_WAITS[rule_id])] if sound and rule_id in SHARED_WAITS else sound
        found = [for_inference(finding, each) for each in judged if (finding := apply(each)) is not None]
        findings += sorted(found, key=by_saving)[:1]
    if distributed is not None:
        findings += run_rule.find(distributed)
    return tuple(sorted(findings, key=by_saving))


def find_in_fit(
    fit: FitTime | None, *, compilation: CompileReport | None = None, growth: MemoryGrowth | None = None
) -> tuple[Finding, ...]:
    """Apply every rule about a whole fit: the most to save first. Savings are of the fit, not per step."""
    findings = compile_rule.find(compilation) if compilation is not None else []
    if fit is not None:
        # A first step that compiles is the same lost time as the cost of compilation.
        explained = any(finding.kind == "compile-cost" for finding in findings) and is_compilation(fit)
        findings += [found for found in fit_rule.find(fit) if found.kind != "slow-first-step" or not explained]
    if growth is not None:
        findings += growth_rule.find(growth)
    return tuple(sorted(findings, key=by_saving))


def find_in_log(run: StepTimes, lead: RankAnalysis | None, fit: FitTime | None) -> list[Finding]:
    """Apply every rule about the step log of a run. The leading rank's recording and the account show the reasons."""
    return log_rule.find(run, lead, fit)
