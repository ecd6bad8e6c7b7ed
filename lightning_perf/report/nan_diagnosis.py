"""`NanDiagnosis`: why the loss of a run turned NaN or infinite, as ``lightning-perf explain RUN_FOLDER`` prints it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lightning_perf.documents import TextDocument
from lightning_perf.errors import TraceError
from lightning_perf.run_files.numerics.precision import PRECISION_NAME, BadRun, read_precision
from lightning_perf.show.blocks import Block, Line

HEALTHY = "No step of this run had a loss of NaN or infinity, as far as it was checked."

SCHEMA_VERSION = 1


class NanDiagnosis(TextDocument, frozen=True):
    """The diagnosis of a loss that turned NaN or infinite.

    Attributes:
        folder: The folder of the run.
        bad_run: The diagnosis; ``None`` if no checked step of the run had a loss of NaN or infinity.
        schema_version: `SCHEMA_VERSION` of the writer.
    """

    folder: str
    bad_run: BadRun | None
    schema_version: int = SCHEMA_VERSION

    def blocks(self) -> Iterator[Block]:
        """Yield the diagnosis."""
        from lightning_perf.report.sections.precision import bad_run_blocks

        if self.bad_run is None:
            yield Line(HEALTHY)
        else:
            yield from bad_run_blocks(self.bad_run)


def diagnose_nan(folder: Path) -> NanDiagnosis:
    """Read the diagnosis that `PerfCallback` made during a training."""
    if not folder.is_dir():
        raise TraceError(folder, "no such folder", "Give the folder of a run, e.g. lightning_logs/version_0/perf")
    if not (folder / PRECISION_NAME).exists():
        raise TraceError(
            folder,
            f"no {PRECISION_NAME} in it, so no fit with PerfCallback has ended here",
            "Give the folder of such a fit, e.g. lightning_logs/version_0/perf",
        )
    return NanDiagnosis(str(folder), read_precision(folder / PRECISION_NAME).bad_run)
