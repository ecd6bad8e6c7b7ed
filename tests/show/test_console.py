"""Each kind of block on a terminal, in a pipe, and on a narrow page."""

import io
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.show.blocks import (
    Block,
    Cell,
    Chart,
    Code,
    Context,
    Details,
    Heading,
    Line,
    Listing,
    Span,
    listing,
    note,
    rest,
    table,
)
from lightning_perf.show.console import print_blocks
from lightning_perf.show.markup import to_markdown
from lightning_perf.show.terminal_text import UNBREAKABLE
from tests.support.shown import console_text

HOSTILE = "[bold red]evil[/] \x1b[31m\x07\r\n\u202eoliam \u2066x [link=http://example.com]y[/link] :smile: \ud800"
INERT = r"[bold red]evil[/] \x1b[31m\x07\r\n\u202eoliam \u2066x [link=http://example.com]y[/link] :smile: \ud800"

COMPACT = table(
    ("kernel", "time", "share"),
    [("gemm", "2.00 ms", Cell("50.0 %", 0.5, bar=0.5)), ("copy", "1 ns", "–")],
    kinds="name figure share",
)
FRAMED = table(("", "change", "interval"), [("step time", "−6.1 %", "−6.7 % to −5.5 %")], "Differences")


def test_lines_headings_lists_and_code() -> None:
    blocks: list[Block] = [
        Line(("A ", Span("b", "good"), "."), "strong"),
        note("Read first."),
        Line(),
        Heading("Section"),
        *listing(["one", Line("two", label="Fix")], indent=3),
        *listing(["three"], marker="-"),
        Code(("x = 1",)),
    ]
    expected = "A b.\nNote  Read first.\n\n\nSection\n   one\n   Fix  two\n- three\n  x = 1\n"
    assert console_text(blocks) == expected


def test_context_is_left_out_and_details_are_shown() -> None:
    blocks: list[Block] = [Context((Line("who"),)), Details("More", (Line("figures"),))]
    assert console_text(blocks) == "figures\n"


def test_a_compact_table_has_bars_if_the_terminal_is_wide() -> None:
    assert (
        console_text([COMPACT], 75)
        == "kernel           time   share\ngemm          2.00 ms  50.0 %\ncopy             1 ns       –\n"
    )
    assert console_text([COMPACT], 76).splitlines()[1] == "gemm          2.00 ms  50.0 %  ████████"


def test_a_framed_table_has_its_title_and_a_line_before_it() -> None:
    assert console_text([Line("Before"), FRAMED, Line("after")]).splitlines() == [
        "Before",
        "",
        "Differences",
        "",
        "            change          interval",
        " ───────────────────────────────────",
        " step time  −6.1 %  −6.7 % to −5.5 %",
        "",
        "after",
    ]


def test_a_title_is_one_line_however_narrow_its_table_is() -> None:
    title = "Differences that make the comparison unfair"
    assert console_text([table(("", "a"), [("x", "1")], title)], 60).splitlines()[0] == title


@pytest.mark.parametrize("width", range(30, 60))
def test_a_line_with_wide_characters_loses_nothing(width: int) -> None:
    text = "名 前 is faster than 名: step time −4.4 % (95 % interval −5.7 % to −3.1 %), a speed-up of 1.046."
    shown = console_text([Line(text, label="Verdict")], width)
    assert " ".join(shown.split()) == f"Verdict {text}"


def test_a_table_without_rows_is_left_out() -> None:
    assert console_text([table(("a", "b"), []), table(("a", "b"), [], "Title"), *listing([]), *rest(0, "row")]) == ""


def test_the_rest_of_a_table_is_counted() -> None:
    lines = [*rest(1, "kernel"), *rest(1200, "row"), *rest(3, "", hint="")]
    assert console_text(lines).splitlines() == [
        "… and 1 more kernel (--top N shows more)",
        "… and 1,200 more rows (--top N shows more)",
        "… and 3 more",
    ]


def test_names_that_differ_at_their_end_stay_apart_on_a_narrow_page() -> None:
    name = "aten::cudnn_convolution_backward_with_a_rather_long_name_"
    text = console_text([table(("operator", "time"), [(f"{name}input", "1 ms"), (f"{name}weight", "2 ms")])], 40)
    assert max(map(len, text.splitlines())) <= 40
    assert "name_input " in text
    assert "name_weight " in text


@pytest.mark.parametrize("width", range(50, 70))
def test_no_figure_is_torn_from_its_unit(width: int) -> None:
    text = console_text(
        [Line("A step takes 178 ms: 33.4 % waits, 1.50 GiB at 3 TFLOP/s, not split\u00a0here. " * 3)], width
    )
    assert not re.search(r"\d\n(%|ms|GiB|TFLOP)|split\n", text)
    assert UNBREAKABLE not in text


def test_what_does_not_fit_on_a_line_continues_below_its_own_text() -> None:
    first, *others = console_text([note("word " * 40)], 60).splitlines()
    assert first.startswith("Note  word")
    assert others
    assert all(line.startswith("      word") for line in others)


def test_paths_to_copy_are_whole_on_a_line() -> None:
    path = "/a/very/long/path" * 6
    assert console_text([Line(path, copied=True), Code((path,))], 40) == f"{path}\n  {path}\n"


def test_a_chart_has_a_point_per_value_and_a_mark_per_change() -> None:
    values = (1.0, 1.0, 1.0, 2.0, 2.0)
    chart = Chart("step time", "ms", values, (1.0, 1.0, 1.0, 2.0, 2.0), (3,), ("2026-01-01", "2026-01-05"))
    _, head, *lines = console_text([chart], 80).splitlines()
    assert head == "step time (ms)"
    assert [line.split()[0] for line in (lines[0], lines[8])] == ["2.000", "1.000"]
    assert (lines[0].count("•"), lines[8].count("•")) == (2, 3)
    assert all("│" in line for line in lines[:9])
    assert lines[9].split() == ["2026-01-01", "2026-01-05"]


def test_a_pipe_gets_no_escape_sequence_and_no_blanks_at_the_ends_of_lines() -> None:
    text = console_text([Line("bad", "bad"), COMPACT, FRAMED], 80)
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_stream_without_unicode_gets_units_and_bars_all_the_same() -> None:
    content = io.BytesIO()
    file = io.TextIOWrapper(content, encoding="ascii")
    print_blocks([Line("500 µs"), COMPACT], file=file, width=80)
    file.flush()
    text = content.getvalue().decode("ascii")
    assert "500 us" in text
    assert "########" in text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLORTERM": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.usefixtures("terminal")
def test_styles_links_and_troubled_cells_are_coloured_with_sixteen_colours() -> None:
    troubled = table(("layer", "share"), [(Cell("fc", troubled=True, detail=" [2, 3]"), Cell("same", style="quiet"))])
    text = console_text([Line(("a ", Span("rule", link="https://example.com/rule")), "strong"), COMPACT, troubled], 100)
    assert re.search(r"\x1b\[1m", text)
    assert "\x1b[33mfc" in text
    assert "]8;" in text
    assert "https://example.com/rule" in text
    assert "38;5" not in text
    assert "38;2" not in text


@pytest.mark.usefixtures("terminal")
def test_hostile_names_are_inert_on_a_terminal() -> None:
    span = (HOSTILE, Span(HOSTILE, "good"))
    blocks: list[Block] = [
        Heading(HOSTILE),
        Line(span, label=HOSTILE),
        Line(span, copied=True),
        Listing((Line(HOSTILE),), marker="-"),
        table(("name", "text"), [(HOSTILE, HOSTILE)], kinds="name text"),
        table((HOSTILE, "text"), [(HOSTILE, HOSTILE)], HOSTILE),
        Code((HOSTILE,)),
    ]
    text = console_text(blocks, 1000)
    assert text.count(INERT) == 14
    for char in ("\x07", "\r", "\u202e", "\u2066", "\x1b]8"):
        assert char not in text


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


MARKUP = "<script>|evil| \x1b[31m\u202e [y](http://example.com) `code` *bold* &lt; $x$"


def test_each_kind_of_block() -> None:
    blocks: list[Block] = [
        Context((Heading("Title", level=1),)),
        Line("Outcome.", "strong"),
        note("Read_first."),
        Line(),
        *listing(["one", Line(("Fix: ", Span("two", "good")))], indent=3),
        Heading("Section"),
        Chart("t", "ms", (1.0, 2.0), (1.0, 1.0), (), ("a", "b")),
        Details(
            "Figures",
            (
                table(
                    ("name", "wait\nat most", "source"),
                    [("  a  b", Cell("1", detail=" [2]"), "x")],
                    kinds="name duration text",
                ),
                table(("", "low"), [("gate", "–")], "Gates"),
                table(("empty", "low"), [], "Left out"),
            ),
        ),
        Details("Left out", ()),
        Code(("a = '```'",)),
    ]
    assert to_markdown(blocks).split("\n\n") == [
        "# Title",
        "**Outcome.**",
        "**Note** Read\\_first.",
        "- one\n- Fix: two",
        "### Section",
        "<details><summary>Figures</summary>",
        "| name | wait at most | source |\n|---|---:|---|\n| a b | 1 \\[2\\] | x |",
        "### Gates",
        "|  | low |\n|---|---:|\n| gate | – |",
        "</details>",
        "```py\na = '''''\n```\n",
    ]


def test_a_link_is_a_link() -> None:
    line = Line(("Slow  [", Span("sync_points", link="https://example.com/a"), "\u00a0·\u00a0high]"), label="1.", gap=1)
    assert to_markdown([line]) == "**1.** Slow  \\[[sync\\_points](https://example.com/a) · high\\]\n"


def test_hostile_names_do_nothing() -> None:
    blocks: list[Block] = [
        Heading(MARKUP),
        Line(MARKUP, label=MARKUP),
        *listing([MARKUP]),
        table((MARKUP, "b"), [(MARKUP, MARKUP)], MARKUP),
        Details(MARKUP, (Line(MARKUP),)),
    ]
    markdown = to_markdown(blocks)
    assert "\x1b" not in markdown
    assert "\u202e" not in markdown
    assert not re.search(r"(?<!\\)(<script|\[y|`code|\*bold|&lt|\$x)", markdown)
    (row,) = (line for line in markdown.splitlines() if line.startswith("| \\<script") and "b |" not in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 3


@pytest.mark.parametrize(
    "name",
    [
        "@octocat",
        "x@octocat",
        "@me/team",
        "#12",
        "me/mine#12",
        "GH-12",
        "https://evil.test/a",
        "FTP://x",
        "WWW.evil.test",
    ],
)
def test_a_name_mentions_nobody_and_links_nowhere(name: str) -> None:
    (*_, row) = to_markdown([table(("name",), [(name,)])]).splitlines()
    # As GitHub finds them (github.github.com/gfm, "Autolinks (extension)"; docs.github.com, "Autolinked references").
    assert not re.search(r"@\w|#\d|GH-\d|[a-z]://|www\.", row.replace("\\", ""), re.IGNORECASE)
    assert row.replace("\u200b", "").replace("\\", "") == f"| {name} |"


def test_names_of_kernels_stay_as_they_are() -> None:
    assert "\u200b" not in to_markdown([table(("name",), [("f<4, {lambda()#1}>",), ("a @ b",), ("x # y",)])])


@pytest.mark.parametrize("width", [70, 80, 100, 120])
def test_rows_have_their_names_however_long_the_heads_are(width: int) -> None:
    heads = ("operator", "calls", "recorded per step", "one call now", "bf16-mixed", "channels last", "twice the batch")
    rows: list[tuple[str | float, ...]] = [
        ("aten::convolution_backward", 3, *[1.5e6] * 5),
        ("aten::mm", 4, *[2.5e6] * 5),
    ]
    shown = console_text([table(heads, rows, kinds="name figure" + " duration" * 5)], width=width)
    assert max(map(len, shown.splitlines())) <= width
    *_, first, second = shown.splitlines()
    assert (first.startswith("aten::"), second.startswith("aten::mm ")) == (True, True)
    assert (first.count("1.50 ms"), second.count("2.50 ms")) == (5, 5)
