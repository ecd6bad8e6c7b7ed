"""Tables with a title that are too wide for a terminal."""

import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.show.blocks import table
from tests.support.shown import console_text

CELLS = st.lists(st.sampled_from(["ab", "−53.1 %", "+0.25 pt", "to", "throughput", "0.0312"]), max_size=5).map(" ".join)


@given(st.lists(st.lists(CELLS, min_size=5, max_size=5), min_size=1, max_size=4), st.integers(30, 120))
def test_a_table_that_fits_no_line_is_parted_and_loses_nothing(rows: list[list[str]], width: int) -> None:
    named = [(f"row{number}", *cells) for number, cells in enumerate(rows)]
    shown = table(("", "before", "after", "change", "interval", "verdict"), named, "Differences")
    lines = console_text([shown], width).splitlines()
    assert all(len(line) <= width for line in lines)
    words = Counter(word for line in lines for word in line.split() if not word.startswith(("row", "─")))
    cells = Counter(word for row in rows for cell in row for word in cell.split())
    assert words == cells + Counter(("Differences", "before", "after", "change", "interval", "verdict"))
    assert not any(re.search(r"(?<!\d) (%|pt)(?= |$)", line) for line in lines)
    assert len({line.split()[0] for line in lines if line.split() and line.split()[0].startswith("row")}) == len(rows)
