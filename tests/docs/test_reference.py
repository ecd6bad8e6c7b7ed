"""docs/report.md: everything that a report can hold is there, with all of its fields."""

import re
import types
import typing
from collections.abc import Iterator

import msgspec
import pytest

import lightning_perf
import lightning_perf.compare
import lightning_perf.history
import lightning_perf.inference
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.compare.verdicts.comparison import Comparison, InvalidRuns, Unfair
from lightning_perf.estimates.calibration import Calibration
from lightning_perf.findings.pages import Explanation
from lightning_perf.history.document import History
from lightning_perf.history.gate import HistoryGate
from lightning_perf.inference.results.tradeoff import Sweep, Tradeoff
from lightning_perf.loading.result import LoadingReport
from lightning_perf.memory_snapshot.compared import MemoryDiff
from lightning_perf.memory_snapshot.document import MemoryReport
from lightning_perf.report.compared import Compared
from lightning_perf.report.document import NanDiagnosis, PerfReport
from lightning_perf.tune.result import TuneResult
from tests.support.markdown import DOCS

_SECTION = re.compile(r"^::: ([\w.]+)$", re.M)


def reachable(annotation: object, seen: set[type]) -> Iterator[type[msgspec.Struct]]:
    """The structs that a value of an annotated type can hold, itself included."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct) and annotation not in seen:
        seen.add(annotation)
        yield annotation
        for hint in typing.get_type_hints(annotation).values():
            yield from reachable(hint, seen)
    for argument in typing.get_args(annotation):
        yield from reachable(argument, seen)


PARTS = list(reachable(PerfReport, set()))
ROOTS = (
    *(PerfReport, Compared, Comparison, Unfair, InvalidRuns, Tradeoff, Sweep, TuneResult, Calibration),
    *(LoadingReport, Explanation, NanDiagnosis, History, HistoryGate, MemoryReport, MemoryDiff),
)
OTHER_PARTS = sorted({part for root in ROOTS for part in reachable(root, set())} - set(PARTS), key=str)


def shown(page: str) -> set[str]:
    """The names of objects that a page of the docs shows."""
    return set(_SECTION.findall((DOCS / page).read_text(encoding="utf-8")))


PACKAGES = (lightning_perf, lightning_perf.compare, lightning_perf.history, lightning_perf.inference)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_there(package: types.ModuleType) -> None:
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        package.absent  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_documented(package: types.ModuleType) -> None:
    # In report.md and documents.md; what `read_trace` gives is for `analyze`.
    elsewhere = {
        "PerfReport",
        "Compared",
        "Comparison",
        "Finding",
        "History",
        "HistoryGate",
        "Sweep",
        "Unfair",
        "Trace",
        "__version__",
    }
    for name in set(package.__all__) - elsewhere:
        assert {f"{public.__name__}.{name}" for public in PACKAGES} & shown("api.md"), name


def test_a_report_holds_these() -> None:
    assert {"PerfReport", "Finding", "StepTime", "Ratio", "LayerUnderflow"} <= {part.__name__ for part in PARTS}
    assert list(reachable(dict[str, tuple[int, ...]] | types.NoneType, set())) == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_part_of_a_report_is_documented(part: type) -> None:
    assert f"{part.__module__}.{part.__name__}" in shown("report.md")


@pytest.mark.parametrize("part", OTHER_PARTS, ids=lambda part: part.__name__)
def test_every_part_of_the_other_documents_is_documented(part: type) -> None:
    names = {
        f"{package}.{part.__name__}" for package in (part.__module__, "lightning_perf", "lightning_perf.inference")
    }
    assert names & (shown("documents.md") | shown("api.md"))


@pytest.mark.parametrize("part", [*PARTS, *OTHER_PARTS], ids=lambda part: part.__name__)
def test_every_field_is_documented(part: type[msgspec.Struct]) -> None:
    attributes = (part.__doc__ or "").partition("Attributes:")[2]
    named = {name for names in re.findall(r"^        ([\w, ]+):", attributes, re.M) for name in names.split(", ")}
    assert set(part.__struct_fields__) <= named


def test_sections_are_named_as_the_fields() -> None:
    text = (DOCS / "report.md").read_text(encoding="utf-8")
    named = [
        name.split(".")[-1] for names in re.findall(r"^### (.+)$", text, re.M) for name in re.findall(r"`(.+?)`", names)
    ]
    assert set(named) <= {name for part in PARTS for name in part.__struct_fields__}
    sections = set(RankAnalysis.__struct_fields__) - {
        "rank",
        "sources",
        "recording_ns",
        "wrappers",
    }
    assert sections <= set(named)
