from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.tables import Table, fit, fold

CELLS = st.lists(st.sampled_from(["ab", "−53.1 %", "+0.25 pt", "to", "throughput", "0.0312"]), max_size=5).map(" ".join)


@given(CELLS, st.integers(10, 40))
def test_folded_text_has_all_words_within_the_width_and_units_by_their_figures(text, width):
    lines = fold(text, width).split("\n")
    assert " ".join(lines) == text
    assert all(len(line) <= width for line in lines)
    assert not any(line.startswith(("%", "pt")) for line in lines)


@given(st.lists(st.lists(CELLS, min_size=5, max_size=5), min_size=2, max_size=4), st.integers(30, 120))
def test_a_table_that_fits_no_line_is_parted_and_loses_nothing(rows, width):
    table = Table("t", tuple(rows[0]), tuple(map(tuple, rows[1:])))
    parts = fit(table, width, 2)
    seen = [
        cell for part in parts for column in list(zip(part.columns, *part.rows, strict=True))[1:] for cell in column
    ]
    meant = [cell for column in list(zip(*rows, strict=True))[1:] for cell in column]
    assert [cell.replace("\n", " ") for cell in seen] == meant
    for part in parts:
        columns = list(zip(part.columns, *part.rows, strict=True))
        widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
        assert sum(widths) + 2 * len(columns) <= width
        assert [cell.replace("\n", " ") for cell in columns[0]] == [row[0] for row in rows]
