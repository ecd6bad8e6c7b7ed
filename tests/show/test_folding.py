from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.show.console import fit, fold

CELLS = st.lists(st.sampled_from(["ab", "−53.1 %", "+0.25 pt", "to", "throughput", "0.0312"]), max_size=5).map(" ".join)


@given(CELLS, st.integers(10, 40))
def test_folded_text_has_all_words_within_the_width_and_units_by_their_figures(text, width):
    lines = fold(text, width).split("\n")
    assert " ".join(lines) == text
    assert all(len(line) <= width for line in lines)
    assert not any(line.startswith(("%", "pt")) for line in lines)


@given(st.lists(st.lists(CELLS, min_size=5, max_size=5), min_size=2, max_size=4), st.integers(30, 120))
def test_a_table_that_fits_no_line_is_parted_and_loses_nothing(rows, width):
    parts = [list(zip(*part, strict=True)) for part in fit(list(map(tuple, rows)), width, 2)]
    first, *others = zip(*rows, strict=True)
    assert [[cell.replace("\n", " ") for cell in c] for part in parts for c in part[1:]] == list(map(list, others))
    for part in parts:
        widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in part]
        assert sum(widths) + 2 * len(part) <= width
        assert [cell.replace("\n", " ") for cell in part[0]] == list(first)
