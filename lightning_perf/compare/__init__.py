"""Comparing runs: records, statistics over repeated runs, fairness, studies, verdicts.

The public names load on first use: a study starts, and reads its options, without scipy, torch or Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.lazy_names import lazy_names

if TYPE_CHECKING:
    from lightning_perf.compare.build import compare_arms
    from lightning_perf.compare.command import EXIT_CODES, exit_code, report_errors
    from lightning_perf.compare.comparison import Comparison
    from lightning_perf.compare.engines.block import Device
    from lightning_perf.compare.engines.local import LocalEngine, parse_devices
    from lightning_perf.compare.engines.ray import RayEngine
    from lightning_perf.compare.engines.ray_recordings import RayRecordings
    from lightning_perf.compare.engines.slurm import SlurmEngine
    from lightning_perf.compare.errors import CompareError, InvalidRunsError
    from lightning_perf.compare.extras import MissingExtraError, import_extra
    from lightning_perf.compare.folders import compare_runs
    from lightning_perf.compare.gates import parse_gate
    from lightning_perf.compare.record import RunRecord, find_records
    from lightning_perf.compare.refusal import Unfair, UnfairError
    from lightning_perf.compare.settings import Settings
    from lightning_perf.compare.statistics.power import minimal_detectable_effect
    from lightning_perf.compare.study import Study, StudyArm, read_study, run_study, study_notes
    from lightning_perf.compare.study_options import settle_options
    from lightning_perf.compare.study_records import study_arms

_HOMES = {
    "EXIT_CODES": "command",
    "CompareError": "errors",
    "Comparison": "comparison",
    "Device": "engines.block",
    "InvalidRunsError": "errors",
    "LocalEngine": "engines.local",
    "MissingExtraError": "extras",
    "RayEngine": "engines.ray",
    "RayRecordings": "engines.ray_recordings",
    "RunRecord": "record",
    "Settings": "settings",
    "SlurmEngine": "engines.slurm",
    "Study": "study",
    "StudyArm": "study",
    "Unfair": "refusal",
    "UnfairError": "refusal",
    "compare_arms": "build",
    "compare_runs": "folders",
    "exit_code": "command",
    "find_records": "record",
    "import_extra": "extras",
    "minimal_detectable_effect": "statistics.power",
    "parse_devices": "engines.local",
    "parse_gate": "gates",
    "read_study": "study",
    "report_errors": "command",
    "run_study": "study",
    "settle_options": "study_options",
    "study_arms": "study_records",
    "study_notes": "study",
}

__all__ = [
    "EXIT_CODES",
    "CompareError",
    "Comparison",
    "Device",
    "InvalidRunsError",
    "LocalEngine",
    "MissingExtraError",
    "RayEngine",
    "RayRecordings",
    "RunRecord",
    "Settings",
    "SlurmEngine",
    "Study",
    "StudyArm",
    "Unfair",
    "UnfairError",
    "compare_arms",
    "compare_runs",
    "exit_code",
    "find_records",
    "import_extra",
    "minimal_detectable_effect",
    "parse_devices",
    "parse_gate",
    "read_study",
    "report_errors",
    "run_study",
    "settle_options",
    "study_arms",
    "study_notes",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
