"""The report on the console."""

from __future__ import annotations

from lightning_perf.report.console.compared import print_compared
from lightning_perf.report.console.render import print_report

__all__ = ["print_compared", "print_report"]
