"""The rule for models in ``torch.nn.DataParallel``."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.savings import step_ns

__all__ = ["data_parallel"]


def data_parallel(analysis: RankAnalysis) -> Finding | None:
    """Find ``torch.nn.DataParallel``, which copies the model to every device in each step from one process.

    No saving is estimated: a recording of one process does not show the overlap that several processes would have.
    """
    if "DataParallel" not in analysis.wrappers or step_ns(analysis) <= 0:
        return None
    return Finding(
        kind="data-parallel",
        severity="high",
        title="DataParallel: one process drives all devices",
        evidence=("Each step copies the model to every device and gathers the outputs on one of them.",),
        action='Use one process per device: Trainer(strategy="ddp", devices=4) without the wrapper.',
        saving_low_ms=None,
        saving_high_ms=None,
        model="",
        rank=analysis.rank,
    )
