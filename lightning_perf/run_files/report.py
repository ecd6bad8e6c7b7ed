"""``report.json``: the report of a run, next to its traces."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from lightning_perf.run_files.atomic import write_document
from lightning_perf.saved_json import decode_json

REPORT_NAME = "report.json"

Fields = TypeVar("Fields")


def write_report(folder: Path, report: object) -> None:
    """Write ``report.json`` in the folder of a run, atomically."""
    write_document(folder / REPORT_NAME, report)


def read_report_fields(folder: Path, kind: type[Fields]) -> Fields | None:
    """Read the fields of a report that are needed, without decoding the rest.

    Returns:
        The fields; None without a report, or if it does not have them.
    """
    try:
        fields: Fields = decode_json((folder / REPORT_NAME).read_bytes(), kind)
    except (OSError, msgspec.DecodeError):
        return None
    return fields
