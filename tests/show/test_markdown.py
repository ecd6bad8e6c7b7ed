"""Each kind of block as Markdown, in which names are no markup."""

import re

import pytest

from lightning_perf.show.blocks import (
    Block,
    Cell,
    Chart,
    Code,
    Context,
    Details,
    Heading,
    Line,
    Span,
    listing,
    note,
    table,
)
from lightning_perf.show.markup import to_markdown

HOSTILE = "<script>|evil| \x1b[31m\u202e [y](http://example.com) `code` *bold* &lt; $x$"


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
        Heading(HOSTILE),
        Line(HOSTILE, label=HOSTILE),
        *listing([HOSTILE]),
        table((HOSTILE, "b"), [(HOSTILE, HOSTILE)], HOSTILE),
        Details(HOSTILE, (Line(HOSTILE),)),
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
