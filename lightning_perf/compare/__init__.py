"""Compare training runs: read their records, check that they may be compared, run studies, and state verdicts.

The public names load on first use, so a study starts and reads its options without scipy, torch or Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.lazy_imports import lazy_names

if TYPE_CHECKING:
    from lightning_perf.compare.commands.compare import EXIT_CODES, exit_code, report_errors
    from lightning_perf.compare.commands.study_options import settle_options
    from lightning_perf.compare.engines.block import Device
    from lightning_perf.compare.engines.local import LocalEngine, parse_devices
    from lightning_perf.compare.engines.ray import RayEngine
    from lightning_perf.compare.engines.ray_cluster import RayRecordings
    from lightning_perf.compare.engines.slurm import SlurmEngine
    from lightning_perf.compare.errors import CompareError, InvalidRunsError
    from lightning_perf.compare.folders import compare_runs
    from lightning_perf.compare.records.record import RunRecord, find_records
    from lightning_perf.compare.study.definition import Study, StudyArm, read_study
    from lightning_perf.compare.study.results import study_arms, study_notes
    from lightning_perf.compare.study.run import run_study
    from lightning_perf.compare.verdicts.build import compare_arms
    from lightning_perf.compare.verdicts.comparison import Comparison
    from lightning_perf.compare.verdicts.gates import Settings, parse_gate
    from lightning_perf.compare.verdicts.refusal import Unfair, UnfairError
    from lightning_perf.lazy_imports import MissingExtraError, import_extra
    from lightning_perf.statistics.power import minimal_detectable_effect

_HOMES = {
    "EXIT_CODES": "lightning_perf.compare.commands.compare",
    "CompareError": "lightning_perf.compare.errors",
    "Comparison": "lightning_perf.compare.verdicts.comparison",
    "Device": "lightning_perf.compare.engines.block",
    "InvalidRunsError": "lightning_perf.compare.errors",
    "LocalEngine": "lightning_perf.compare.engines.local",
    "MissingExtraError": "lightning_perf.lazy_imports",
    "RayEngine": "lightning_perf.compare.engines.ray",
    "RayRecordings": "lightning_perf.compare.engines.ray_cluster",
    "RunRecord": "lightning_perf.compare.records.record",
    "Settings": "lightning_perf.compare.verdicts.gates",
    "SlurmEngine": "lightning_perf.compare.engines.slurm",
    "Study": "lightning_perf.compare.study.definition",
    "StudyArm": "lightning_perf.compare.study.definition",
    "Unfair": "lightning_perf.compare.verdicts.refusal",
    "UnfairError": "lightning_perf.compare.verdicts.refusal",
    "compare_arms": "lightning_perf.compare.verdicts.build",
    "compare_runs": "lightning_perf.compare.folders",
    "exit_code": "lightning_perf.compare.commands.compare",
    "find_records": "lightning_perf.compare.records.record",
    "import_extra": "lightning_perf.lazy_imports",
    "minimal_detectable_effect": "lightning_perf.statistics.power",
    "parse_devices": "lightning_perf.compare.engines.local",
    "parse_gate": "lightning_perf.compare.verdicts.gates",
    "read_study": "lightning_perf.compare.study.definition",
    "report_errors": "lightning_perf.compare.commands.compare",
    "run_study": "lightning_perf.compare.study.run",
    "settle_options": "lightning_perf.compare.commands.study_options",
    "study_arms": "lightning_perf.compare.study.results",
    "study_notes": "lightning_perf.compare.study.results",
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
