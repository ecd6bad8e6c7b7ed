"""Each kind of block on the page, and a name in it that stays text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.documents import page_json
from lightning_perf.page.blocks import add_parts
from lightning_perf.show.blocks import (
    Block,
    Cell,
    Code,
    Details,
    Heading,
    Line,
    Span,
    Table,
    TableRow,
    listing,
    note,
    table,
)
from tests.page.samples import HOSTILE, hand_made_report

LINK = "https://github.com/org/name/blob/main/page.md"


@pytest.fixture
def show(tmp_path: Path, open_page: Any) -> Any:
    """A function that opens a page on which blocks stand in the place of the step times."""
    document = json.loads(page_json(hand_made_report(tmp_path)))
    del document["parts"]

    def show_(*blocks: Block) -> Any:
        return open_page(add_parts(json.dumps(document).encode(), {"step_times": blocks}))

    return show_


def rows_of(opened: Any, name: str = "step-times") -> list[list[str]]:
    return [
        [cell.strip() for cell in row.locator("th, td").all_inner_texts()]
        for row in opened.page.locator(f"#table-{name} tbody tr").all()
    ]


def figures() -> Table:
    cells = (Cell("2.00 ms", 2e6, bar=0.5), Cell("slower", style="bad"), "a reason")
    rows: list[TableRow] = [
        ("conv", *cells),
        (Cell("fc", troubled=True, detail=" (Linear)"), Cell("10.0 ms", 1e7), "", ""),
    ]
    heads = ("layer", "step time", "outcome", "why")
    return table(heads, rows, kinds="code duration text text", definitions={"step time": "step"}, extra=("why",))


def test_a_table_sorts_by_value_and_exports_it_with_its_unit(show: Any) -> None:
    opened = show(Heading("Times", definition="step"), figures())
    assert rows_of(opened) == [["conv", "2.00 ms", "slower", "a reason"], ["fc (Linear)", "10.0 ms", "", ""]]
    part = opened.page.locator(".part:has(#table-step-times)")
    assert part.locator("h2 button.term").inner_text() == "Times"
    assert part.locator("button.hint").count() == 1
    assert part.locator(".outcome.bad").inner_text() == "slower"
    assert part.locator(".tone.warning").inner_text() == "fc"
    assert part.locator(".bar").count() == 1
    part.get_by_role("button", name="Step time", exact=True).click()
    assert [row[0] for row in rows_of(opened)] == ["fc (Linear)", "conv"]  # 10 ms is more than 2 ms
    with opened.page.expect_download() as download:
        part.locator("button.export").click()
    text = Path(download.value.path()).read_text()
    assert text.splitlines() == [
        "layer,step_time_ns,outcome,why",
        "fc (Linear),10000000,,",
        "conv,2000000,slower,a reason",
    ]


def test_a_column_for_wide_pages_is_chosen_on_narrow_ones(show: Any) -> None:
    opened = show(figures())
    opened.page.set_viewport_size({"width": 600, "height": 900})
    opened.page.reload()
    opened.page.wait_for_selector("#table-step-times td")
    assert len(rows_of(opened)[0]) == 3
    opened.page.locator("#table-step-times .columns-choice summary").click()
    opened.page.get_by_label("Why").check()
    assert rows_of(opened)[0][-1] == "a reason"
    opened.page.set_viewport_size({"width": 1280, "height": 720})


def test_a_table_without_rows_and_a_column_without_content_are_left_out(show: Any) -> None:
    opened = show(
        table(("a", "b"), [], "Nothing"), table(("name", "b", "c"), [("x", "–", 1.0)], "Some", "name text count")
    )
    assert "Nothing" not in opened.texts("main h2")
    assert rows_of(opened) == [["x", "1"]]


def test_lines_lists_code_and_details(show: Any) -> None:
    opened = show(
        Heading("Text"),
        Line("Bold", "strong"),
        Line("Small", "quiet"),
        Line("Careful", "warning"),
        note("Read this."),
        Line("4", label="Fetches"),
        Line(("See ", Span("rule", link=LINK), " or ", Span("run --it", "command"))),
        *listing(["first", "second"]),
        Code(("import torch",)),
        Details("More", (Line("folded"),)),
    )
    part = opened.page.locator(".part", has=opened.page.get_by_role("heading", name="Text"))
    assert part.locator("p.headline").inner_text() == "Bold"
    assert part.locator("p.aside").inner_text() == "Small"
    assert part.locator("p.notice").all_inner_texts() == ["Careful", "Read this."]
    assert part.locator("dl.facts").inner_text().split() == ["Fetches", "4"]
    assert part.locator("a").get_attribute("href") == LINK
    assert part.locator("p > code").inner_text() == "run --it"
    assert part.locator("ul.sentences li").all_inner_texts() == ["first", "second"]
    assert part.locator("pre code").inner_text() == "import torch"
    assert not opened.page.get_by_text("folded").is_visible()
    part.locator("summary").click()
    assert opened.page.get_by_text("folded").is_visible()


def test_names_in_blocks_stay_text(show: Any) -> None:
    opened = show(
        Heading(HOSTILE),
        Line((HOSTILE, Span(HOSTILE, "bad"), Span("link", link=f"javascript:alert(1)//{HOSTILE}"))),
        Line(HOSTILE, label=HOSTILE),
        *listing([HOSTILE]),
        Code((HOSTILE,)),
        Details(HOSTILE, (Line(HOSTILE),)),
        table((HOSTILE, "b"), [(Cell(HOSTILE, troubled=True, detail=HOSTILE), HOSTILE)], HOSTILE),
    )
    assert opened.page.evaluate("globalThis.pwned") is None
    assert opened.page.locator("main img, main script, main a[href^=javascript]").count() == 0
    assert "<img src=x onerror=" in opened.page.inner_text("#table-step-times tbody th")
