from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.trace import indexing as module
from lightning_perf.trace.indexing import distinct, distinct_rows, used_codes

INTEGERS = st.lists(st.integers(-(2**62), 2**62) | st.integers(-3, 9), max_size=30)


@given(INTEGERS)
def test_as_numpy_finds_them(values: list[int]) -> None:
    column = np.array(values, dtype=np.int64)
    found, place = distinct(column)
    expected, expected_place = np.unique(column, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert place.tolist() == expected_place.tolist()


def test_the_table_is_no_larger_than_it_needs_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_ROWS", 0)
    for dtype in (np.int8, np.uint8, np.int16, np.int64):
        column: Any = np.array([100, 3, 100, 127, 3], dtype=dtype)
        found, place = distinct(column)
        assert (found.tolist(), place.tolist()) == ([3, 100, 127], [1, 0, 1, 2, 0])


@given(st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 4), st.integers(-1, 1)), max_size=40))
def test_rows_as_numpy_finds_them(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    first, place = distinct_rows(*table.T)
    expected, expected_first, expected_place = np.unique(table, axis=0, return_index=True, return_inverse=True)
    assert table[first].tolist() == expected.tolist()
    assert first.tolist() == expected_first.tolist()
    assert place.tolist() == expected_place.ravel().tolist()


@given(st.lists(st.integers(0, 50)))
def test_used_codes(codes: list[int]) -> None:
    assert used_codes(np.array(codes, dtype=np.int32)) == sorted(set(codes))
