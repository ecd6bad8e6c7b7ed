"""The model is wrapped in ``DataParallel``."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.savings import step_ns

__all__ = ["data_parallel"]


def data_parallel(analysis: RankAnalysis) -> Finding | None:
    """Find ``torch.nn.DataParallel``, which copies the model to every device in each step from one process.

    No saving is predicted: a recording of one process does not tell what processes of their own would overlap.
    """
    if "DataParallel" not in analysis.wrappers or step_ns(analysis) <= 0:
        return None
    return Finding(
        kind="data-parallel",
        severity="high",
        title="The model runs in DataParallel: one process drives all devices",
        evidence=("In each step the model is copied to every device, and outputs are gathered on one.",),
        action='Use one process a device: Trainer(strategy="ddp", devices=…).',
        saving_low_ms=None,
        saving_high_ms=None,
        model="",
        rank=analysis.rank,
    )
