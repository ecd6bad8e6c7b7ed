"""Compare training runs: read their records, check that they may be compared, run studies, and state verdicts.

The public names load on first use, so a study starts and reads its options without scipy, torch or Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.lazy_imports import lazy_names

if TYPE_CHECKING:
    from lightning_perf.compare.engines.block import Device
    from lightning_perf.compare.engines.local import LocalEngine, SlurmEngine, parse_devices
    from lightning_perf.compare.engines.ray import RayEngine, RayRecordings
    from lightning_perf.compare.folders import compare_runs
    from lightning_perf.compare.judge import EXIT_CODES, exit_code, report_errors
    from lightning_perf.compare.records.metrics import METRICS, Metric, Quality, find_quality, run_values
    from lightning_perf.compare.records.record import RunRecord, find_records
    from lightning_perf.compare.study.definition import Study, StudyArm, read_study, study_arms, study_notes
    from lightning_perf.compare.study.run import run_study
    from lightning_perf.compare.study_options import settle_options
    from lightning_perf.compare.verdicts.build import compare_arms
    from lightning_perf.compare.verdicts.comparison import Comparison, Unfair, UnfairError, VerdictKind
    from lightning_perf.compare.verdicts.gates import Settings, parse_gate
    from lightning_perf.errors import CompareError, InvalidRunsError
    from lightning_perf.lazy_imports import MissingExtraError, import_extra
    from lightning_perf.statistics.location import minimal_detectable_effect

__all__ = [
    "EXIT_CODES",
    "METRICS",
    "CompareError",
    "Comparison",
    "Device",
    "InvalidRunsError",
    "LocalEngine",
    "Metric",
    "MissingExtraError",
    "Quality",
    "RayEngine",
    "RayRecordings",
    "RunRecord",
    "Settings",
    "SlurmEngine",
    "Study",
    "StudyArm",
    "Unfair",
    "UnfairError",
    "VerdictKind",
    "compare_arms",
    "compare_runs",
    "exit_code",
    "find_quality",
    "find_records",
    "import_extra",
    "minimal_detectable_effect",
    "parse_devices",
    "parse_gate",
    "read_study",
    "report_errors",
    "run_study",
    "run_values",
    "settle_options",
    "study_arms",
    "study_notes",
]

__getattr__, __dir__ = lazy_names(__name__)
