"""Comparing runs: records, statistics over repeated runs, fairness, studies, verdicts.

The public names load on first use: a study starts, and reads its options, without scipy, torch or Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.lazy_names import lazy_names

if TYPE_CHECKING:
    from lightning_perf.compare.engines.local import LocalEngine
    from lightning_perf.compare.engines.ray import RayEngine
    from lightning_perf.compare.engines.ray_cluster import RayRecordings
    from lightning_perf.compare.engines.slurm import SlurmEngine
    from lightning_perf.compare.errors import CompareError, InvalidRunsError
    from lightning_perf.compare.record import RunRecord, find_records
    from lightning_perf.compare.study.definition import Study, StudyArm, read_study
    from lightning_perf.compare.study.results import study_arms
    from lightning_perf.compare.study.run import run_study
    from lightning_perf.compare.verdicts.build import compare_arms
    from lightning_perf.compare.verdicts.comparison import Comparison
    from lightning_perf.compare.verdicts.gates import Settings, parse_gate
    from lightning_perf.compare.verdicts.refusal import UnfairError

_HOMES = {
    "CompareError": "errors",
    "Comparison": "verdicts.comparison",
    "InvalidRunsError": "errors",
    "LocalEngine": "engines.local",
    "RayEngine": "engines.ray",
    "RayRecordings": "engines.ray_cluster",
    "RunRecord": "record",
    "Settings": "verdicts.gates",
    "SlurmEngine": "engines.slurm",
    "Study": "study.definition",
    "StudyArm": "study.definition",
    "UnfairError": "verdicts.refusal",
    "compare_arms": "verdicts.build",
    "find_records": "record",
    "parse_gate": "verdicts.gates",
    "read_study": "study.definition",
    "run_study": "study.run",
    "study_arms": "study.results",
}

__all__ = [
    "CompareError",
    "Comparison",
    "InvalidRunsError",
    "LocalEngine",
    "RayEngine",
    "RayRecordings",
    "RunRecord",
    "Settings",
    "SlurmEngine",
    "Study",
    "StudyArm",
    "UnfairError",
    "compare_arms",
    "find_records",
    "parse_gate",
    "read_study",
    "run_study",
    "study_arms",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
