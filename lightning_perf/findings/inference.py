"""The fixes of rules in a recording of inference: a forward pass has no loss, no learning rate and no logger."""

from __future__ import annotations

from dataclasses import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import SIXTEEN_BITS, Finding

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
