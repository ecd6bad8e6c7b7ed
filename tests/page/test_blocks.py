"""Each kind of block on the page, and a name in it that stays text."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.documents import page_json
from lightning_perf.show.blocks import (
    Bar,
    Block,
    Card,
    Cell,
    Code,
    Details,
    Figure,
    Figures,
    Heading,
    Line,
    Part,
    Plot,
    Span,
    Table,
    TableRow,
    listing,
    note,
    table,
)
from lightning_perf.show.plots import bars, names_axis
from tests.page.samples import HOSTILE, hand_made_report

LINK = "https://github.com/org/name/blob/main/page.md"


@pytest.fixture
def show(tmp_path: Path, open_page: Any) -> Any:
    """A function that opens a page on which blocks stand in the place of the step times."""
    document = json.loads(page_json(hand_made_report(tmp_path)))
    del document["parts"]

    def show_(*blocks: Block, **settings: Any) -> Any:
        return open_page(msgspec.json.encode({**document, "parts": {"step_times": blocks}}), **settings)

    return show_


def rows_of(opened: Any, name: str = "step-times") -> list[list[str]]:
    return [
        [" ".join(cell.split()) for cell in row.locator("th, td").all_inner_texts()]
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
    assert part.locator(".tone.warning .name").inner_text() == "fc"
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
    opened = show(figures(), viewport={"width": 600, "height": 900})
    assert len(rows_of(opened)[0]) == 3
    opened.page.locator("#table-step-times .columns-choice summary").click()
    opened.page.get_by_label("Why").check()
    assert rows_of(opened)[0][-1] == "a reason"


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
    assert part.locator("p .code-line code").inner_text() == "run --it"
    assert part.locator("ul.sentences li").all_inner_texts() == ["first", "second"]
    assert part.locator("pre code").inner_text() == "import torch"
    assert not opened.page.get_by_text("folded").is_visible()
    part.locator("summary").click()
    assert opened.page.get_by_text("folded").is_visible()


def test_figures_bars_cards_and_links(show: Any) -> None:
    linked = table(
        ("at", "share"), [(Cell("3.00 ms", 3e6, link="#view=timeline&time.at=7"), 0.5)], kinds="duration share"
    )
    opened = show(
        Heading("Times", aside="per step"),
        Figures((Figure("Busy", "70.3 %", "of the time", "busy"), Figure("Unknown", "–"))),
        Bar("Parts", (Part("forward", 1.0, "1.00 ms", "forward"), Part("rest", 3.0, "3.00 ms", "other"))),
        Card("Slow", "high", "bad", (Line("Evidence"), Line("Saves 1 ms", "strong", range=(0.25, 0.5))), "rank 1"),
        Card("Small", "low", "command", (Line("Folded"), linked), summary="saves 2 ms"),
    )
    part = opened.page.locator(".part", has=opened.page.get_by_role("heading", name="Times"))
    assert part.locator(".part-head .aside").inner_text() == "per step"
    assert part.locator(".tile dd").all_text_contents() == ["70.3\u00a0%of the time"]
    assert part.locator(".stack-bar").get_attribute("aria-label") == "Parts: forward 1.00 ms, rest 3.00 ms"
    widths = part.locator(".stack-bar span").evaluate_all("spans => spans.map((span) => span.style.width)")
    assert widths == ["25%", "75%"]
    card = part.locator("article.finding.high")
    assert card.locator(".severity").inner_text() == "high"
    scale = card.locator(".saving-scale").bounding_box()
    saved = card.locator(".saving-scale span").bounding_box()
    assert saved["width"] == pytest.approx(scale["width"] / 4, abs=1)
    assert saved["x"] - scale["x"] == pytest.approx(scale["width"] / 4, abs=1)
    folded = part.locator("details.finding.low")
    assert not folded.get_by_text("Folded").is_visible()
    folded.locator("summary").click()
    assert folded.locator("a").get_attribute("href") == "#view=timeline&time.at=7"
    assert folded.locator(".bar").count() == 1  # of the share


def test_a_plot_has_the_values_texts_and_colors_of_the_document(show: Any) -> None:
    names = ["short", "a name that has no room on a single line of a chart of some page"]
    trace = bars([1.5, -2.5], [0, 1], ["first", f"<b>second</b>\n{HOSTILE}"], ["good", "high"], orientation="h")
    opened = show(Plot("A picture", (trace,), {"yaxis": names_axis(names)}, legend=(("saved", "good"),)))
    opened.draw_charts()
    drawn, ticks = opened.page.evaluate(
        "(([chart]) => [chart.data[0], chart.layout.yaxis.ticktext])(document.querySelectorAll('.chart'))"
    )
    assert drawn["x"] == [1.5, -2.5]
    assert drawn["hovertext"][1].startswith("&lt;b&gt;second&lt;/b&gt;<br>&lt;img")
    good, high = (
        opened.page.evaluate(f"getComputedStyle(document.body).getPropertyValue('--{n}')") for n in ("good", "high")
    )
    assert drawn["marker"]["color"] == [good, high]
    assert ticks[0] == "short"
    assert len(ticks[1]) == 44
    assert ticks[1].startswith("a name")
    assert ticks[1].endswith("of some page")
    assert opened.page.locator("main .legend").first.inner_text() == "saved"
    assert opened.page.evaluate("globalThis.pwned") is None


def test_names_in_blocks_stay_text(show: Any) -> None:
    opened = show(
        Heading(HOSTILE),
        Line((HOSTILE, Span(HOSTILE, "bad"), Span("link", link=f"javascript:alert(1)//{HOSTILE}"))),
        Line(HOSTILE, label=HOSTILE),
        *listing([HOSTILE]),
        Code((HOSTILE,)),
        Details(HOSTILE, (Line(HOSTILE),)),
        Figures((Figure(HOSTILE, HOSTILE, HOSTILE),)),
        Bar(HOSTILE, (Part(HOSTILE, 1.0, HOSTILE, HOSTILE),)),
        Card(
            HOSTILE,
            HOSTILE,
            "bad",
            (Line((Span("x", link=f"#{HOSTILE}"), Span(HOSTILE, "command"))),),
            HOSTILE,
            HOSTILE,
        ),
        table((HOSTILE, "b"), [(Cell(HOSTILE, troubled=True, detail=HOSTILE), HOSTILE)], HOSTILE),
    )
    assert opened.page.evaluate("globalThis.pwned") is None
    assert opened.page.locator("main img, main script, main a[href^=javascript]").count() == 0
    assert "<img src=x onerror=" in opened.page.inner_text("#table-step-times tbody th")
