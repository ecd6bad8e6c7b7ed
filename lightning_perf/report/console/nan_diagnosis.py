"""The diagnosis of a NaN on the console and as Markdown."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from lightning_perf.markdown_text import parts_to_markdown
from lightning_perf.report.console.precision import bad_run_section
from lightning_perf.report.console.render import ReportConsole

if TYPE_CHECKING:
    from lightning_perf.report.nan_diagnosis import NanDiagnosis

HEALTHY = "No step of this run had a loss of NaN or infinity, as far as it was checked."


def print_diagnosis(found: NanDiagnosis, *, file: IO[str] | None, width: int | None) -> None:
    """Print a diagnosis."""
    console = ReportConsole(file=file, width=width, highlight=False, emoji=False, markup=False)
    for part in _parts(found):
        console.print(part)


def diagnosis_to_markdown(found: NanDiagnosis) -> str:
    """Return a diagnosis as Markdown."""
    return parts_to_markdown(_parts(found))


def _parts(found: NanDiagnosis) -> list[RenderableType]:
    if found.bad_run is None:
        return [Text(HEALTHY)]
    return list(bad_run_section(found.bad_run))[1:]  # without its heading
