"""The reader against a second, naive one: every column of every real trace."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.conftest import corpus_rows
from tests.support.naive_reader import read_naively

FILES = [row["file"] for row in corpus_rows()]

# Codes are compared by what they stand for: the order of interning is each reader's own.
STRINGS = {
    "name": "names",
    "thread": "threads",
    "input_types": "type_lists",
    "input_shapes": "shape_lists",
    "input_strides": "stride_lists",
    "dtype": "names",
    "group": "names",
}
TABLES = ("operators", "annotations", "python", "runtime", "device", "collectives", "memory")


def values(trace: Trace, table: str, column: str) -> Any:
    """A column with its strings looked up."""
    codes = getattr(getattr(trace, table), column)
    if column not in STRINGS:
        return codes
    strings = np.array([str(value) for value in getattr(trace, STRINGS[column])], dtype=object)
    return strings[codes] if len(codes) else codes


def assert_same(trace: Trace, other: Trace) -> None:
    for table in TABLES:
        for column in fields(getattr(trace, table)):
            np.testing.assert_array_equal(
                values(trace, table, column.name), values(other, table, column.name), err_msg=f"{table}.{column.name}"
            )


@pytest.mark.corpus
@pytest.mark.parametrize("file", FILES)
def test_every_column_agrees(file: str, corpus: Path) -> None:
    path = corpus / "traces" / file
    trace, naive = read_trace(path), read_naively(path)
    assert_same(trace, naive)
    assert trace.metadata == naive.metadata
    assert trace.problems.dropped_events == 0
    assert not trace.problems.truncated
