"""The reader against a second, naive one: every column of every real trace."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_perf.trace.columns import CODED_COLUMNS
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.conftest import corpus_rows
from tests.support.naive_reader import read_naively

FILES = [row["file"] for row in corpus_rows()]

TABLES = ("operators", "annotations", "python", "runtime", "device", "collectives", "memory")


def values(trace: Trace, table: str, column: str) -> Any:
    """A column, its codes replaced by what they mean: each reader numbers its strings in an order of its own."""
    codes = getattr(getattr(trace, table), column)
    if column not in CODED_COLUMNS:
        return codes
    strings = np.array([str(value) for value in getattr(trace, CODED_COLUMNS[column])], dtype=object)
    return strings[codes] if len(codes) else codes


def assert_same(trace: Trace, other: Trace) -> None:
    for table in TABLES:
        for column in getattr(trace, table).__struct_fields__:
            np.testing.assert_array_equal(
                values(trace, table, column), values(other, table, column), err_msg=f"{table}.{column}"
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
