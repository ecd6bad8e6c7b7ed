"""All rules, and the functions that apply them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

from msgspec.structs import replace

from lightning_perf.analysis.compilation import CompileReport
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.steps.fit_time import FitTime, MemoryGrowth
from lightning_perf.findings.finding import (
    SIXTEEN_BITS,
    Finding,
    by_saving,
    compile_rule,
    device_rule,
    fit_rule,
    growth_rule,
    log_rule,
    ranks_rule,
    rule,
    run_rule,
)
from lightning_perf.findings.fit import is_compilation
from lightning_perf.findings.ranks import SHARED_WAITS
from lightning_perf.run_files.fit.gpu_health import GpuHealth

TOPICS = (
    "compilation",
    "conditions",
    "cpu",
    "fit",
    "host",
    "kernels",
    "loading",
    "memory",
    "model",
    "ranks",
    "steps",
)
for topic in TOPICS:
    import_module(f"lightning_perf.findings.{topic}")  # adds its rules

RULE_IDS = frozenset(
    rule_id
    for rules in (rule, run_rule, ranks_rule, log_rule, fit_rule, compile_rule, growth_rule, device_rule)
    for rule_id in rules.by_id
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
    fit: FitTime | None,
    *,
    compilation: CompileReport | None = None,
    growth: MemoryGrowth | None = None,
    gpus: Sequence[GpuHealth] = (),
) -> tuple[Finding, ...]:
    """Apply every rule about a whole fit: the most to save first. Savings are of the fit, not per step."""
    findings = compile_rule.find(compilation) if compilation is not None else []
    if fit is not None:
        # A first step that compiles is the same lost time as the cost of compilation.
        explained = any(finding.kind == "compile-cost" for finding in findings) and is_compilation(fit)
        findings += [found for found in fit_rule.find(fit) if found.kind != "slow-first-step" or not explained]
    if growth is not None:
        findings += growth_rule.find(growth)
    findings += device_rule.find(gpus)
    return tuple(sorted(findings, key=by_saving))


FIXES = {
    "autocast-tax": "Convert the weights once: model.to(torch.bfloat16) or model.half() instead of torch.autocast. "
    "lightning-perf infer measures speed and agreement of such variants.",
    "channels-last": "Keep model and inputs in channels last: model.to(memory_format=torch.channels_last), and "
    "images = images.contiguous(memory_format=torch.channels_last).",
    "cpu-channels-last": "Keep images in channels last: model.to(memory_format=torch.channels_last). Activations "
    "follow the weights.",
    "cold-start": "Call the model a few times before you record, or with torch.profiler schedule(skip_first=20, …).",
    "cudnn-benchmark": "If you recorded the first calls, record later ones. If shapes change from call to call, turn "
    "the measurements off: torch.backends.cudnn.benchmark = False.",
    "exposed-communication": "Issue collectives earlier, so that compute hides them, or split the model over fewer "
    "devices.",
    "half-precision": 'Run the model in 16 bits: with torch.autocast("cuda", dtype=torch.bfloat16), or torch.float16 '
    "before Ampere. lightning-perf infer measures speed and agreement of such variants.",
    "host-work": "Do less between batches, or prepare the next batch in another thread or process.",
    "memory-full": "Use a smaller batch, or weights in 16 bits: model.to(torch.bfloat16).",
    "memory-spare": "Double the batch as long as samples/s rise.",
    "sync-points": "Keep values on the device between batches, and copy results once per batch. Copy inputs from "
    "pinned memory: tensor.to(device, non_blocking=True).",
    "tf32-off": 'Allow TF32: torch.set_float32_matmul_precision("high"), and torch.backends.cudnn.allow_tf32 = True '
    "for convolutions.",
}
"""Fixes by rule. Those of other rules hold for inference, too."""

CHANGES = {
    "autocast-tax": "operators that autocast keeps in FP32 run in 16 bits, too",
    "memory-full": f"in 16 bits, {SIXTEEN_BITS}",
    **dict.fromkeys(("exposed-communication", "host-work", "launch-bound", "memory-spare", "stop-flags"), ""),
}
"""How these fixes change results, where that differs from a training. A larger batch does not change inference."""


def for_inference(finding: Finding, analysis: RankAnalysis) -> Finding:
    """Return the finding, with the fix for inference if the recording shows no training."""
    if analysis.workload.trains is not False:
        return finding
    return replace(
        finding,
        action=FIXES.get(finding.kind, finding.action),
        changes=CHANGES.get(finding.kind, finding.changes),
    )
