"""The actions of a reader with mouse and keyboard: sort, search, page, export, follow links, open definitions."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.model.modules import ModuleRow, ModuleTree
from lightning_perf.documents import page_json
from lightning_perf.page.html import render_html
from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from tests.findings.recordings import training
from tests.page.samples import hand_made_report, trained_precision

Rows = Callable[..., PerfReport]


@pytest.fixture
def many_operators(tmp_path: Path) -> Rows:
    """A function that makes a report of as many operators. The n-th takes n µs per step on the host, with 2 n calls."""
    report = hand_made_report(tmp_path)
    assert report.lead is not None
    lead = report.ranks[report.lead]
    table = lead.operators
    assert table is not None
    row, steps = table.rows[0], table.steps

    def make(number: int, **names: str) -> PerfReport:
        rows = tuple(
            replace(
                row,
                name=names.get(f"n{n}", f"aten::op_{n:04}"),
                calls=2 * n * steps,
                host_self_ns=n * 1000 * steps,
                device_self_ns=None if n % 10 else 0,
            )
            for n in range(number)
        )
        changed = replace(lead, operators=replace(table, rows=rows))
        return replace(report, ranks=tuple(changed if each is lead else each for each in report.ranks))

    return make


def names(opened: Any) -> list[str]:
    return [text.removeprefix("aten::op_") for text in opened.texts("#table-operators tbody th")]


def test_sorting_and_paging(many_operators: Rows, open_page: Any) -> None:
    opened = open_page(many_operators(60), view="operators")
    head = opened.page.locator("#table-operators thead th", has_text="Host self")
    head.locator("button").first.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert names(opened) == [f"{n:04}" for n in range(59, 34, -1)]
    opened.page.click("[aria-label='Next page']")
    assert names(opened) == [f"{n:04}" for n in range(34, 9, -1)]
    assert "26–50 of 60" in opened.page.inner_text("#table-operators .table-foot")
    head.locator("button").first.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert names(opened) == [f"{n:04}" for n in range(25)]
    opened.page.locator("#table-operators thead th", has_text="Operator").locator("button").first.click()
    assert names(opened)[:2] == ["0000", "0001"]


def test_what_has_no_value_comes_last(many_operators: Rows, open_page: Any) -> None:
    opened = open_page(many_operators(25), view="operators")
    button = opened.page.locator("#table-operators thead th", has_text="Device self").locator("button").first
    for _ in ("up", "down"):
        button.click()
        assert set(names(opened)[:3]) == {"0000", "0010", "0020"}


def test_searching(many_operators: Rows, open_page: Any) -> None:
    opened = open_page(many_operators(300), view="operators")
    opened.page.fill("#table-operators input[type=search]", "OP_01 aten")
    assert "of 100" in opened.page.inner_text("#table-operators .table-foot")
    opened.page.fill("#table-operators input[type=search]", "no such thing")
    assert opened.texts("#table-operators tbody td") == ["No row matches."]


def test_a_link_shows_what_its_sender_saw(many_operators: Rows, open_page: Any) -> None:
    opened = open_page(many_operators(300), view="operators")
    opened.page.fill("#table-operators input[type=search]", "op_01")
    opened.page.locator("#table-operators thead th", has_text="Calls").locator("button").first.click()
    opened.page.click("[aria-label='Next page']")
    opened.page.click("[aria-label='Light or dark theme']")
    seen, theme = names(opened), opened.page.evaluate("document.documentElement.dataset.theme")
    assert seen == [f"{n:04}" for n in range(174, 149, -1)]
    assert theme == "dark"
    opened.page.reload()
    opened.page.wait_for_selector("#table-operators tbody th")
    assert names(opened) == seen
    assert opened.page.evaluate("document.documentElement.dataset.theme") == theme
    assert opened.page.input_value("#table-operators input[type=search]") == "op_01"
    assert opened.page.locator("#table-operators th[aria-sort=descending]").inner_text().startswith("Calls")


def test_back_goes_back_and_tables_forget(many_operators: Rows, open_page: Any) -> None:
    opened = open_page(many_operators(30))
    opened.page.click("nav a:text-is('Operators')")
    opened.page.fill("#table-operators input[type=search]", "op_0001")
    opened.page.click("nav a:text-is('Memory')")
    assert opened.page.inner_text("h1") == "Memory"
    assert "search" not in opened.page.url
    assert opened.page.evaluate("document.activeElement.tagName") == "H1"
    opened.page.go_back()
    assert opened.page.inner_text("h1") == "Operators"
    assert names(opened) == ["0001"]


def test_a_table_works_while_the_browser_refuses_to_change_the_address(many_operators: Rows, open_page: Any) -> None:
    opened = open_page(many_operators(30), view="operators")
    opened.page.evaluate("() => { history.replaceState = () => { throw new DOMException('x', 'SecurityError'); }; }")
    opened.page.fill("#table-operators input[type=search]", "op_0001")
    assert names(opened) == ["0001"]
    assert "search" not in opened.page.url
    opened.page.evaluate("delete history.replaceState")
    opened.page.wait_for_url(re.compile("operators.search=op_0001"))


def test_export_has_every_row_and_no_formula(many_operators: Rows, open_page: Any) -> None:
    named = {"n59": '=HYPERLINK("http://x"), "quoted"', "n58": " +1", "n57": "\uff1d1", "n56": "a-b"}
    opened = open_page(many_operators(60, **named))
    opened.show("operators", **{"operators.sort": "host_self"})
    with opened.page.expect_download() as download:
        opened.page.click("#table-operators .export")
    assert download.value.suggested_filename == "operators.csv"
    table = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(), newline="")))
    assert len(table) == 60
    assert table[0]["operator"] == '\'=HYPERLINK("http://x"), "quoted"'
    assert [row["operator"] for row in table[1:4]] == ["' +1", "'\uff1d1", "a-b"]
    assert [float(row["host_self_ns"]) for row in table] == [1000.0 * n for n in range(59, -1, -1)]
    assert table[1]["device_self_ns"] == ""


def test_paper_is_light_and_has_the_charts_out_of_sight_too(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path, trained_precision())
    opened = open_page(report, view="precision", color_scheme="dark")
    drawn = "[...document.querySelectorAll('.chart')].map((chart) => chart.classList.contains('js-plotly-plot'))"
    theme = "document.documentElement.dataset.theme"
    seen = f"document.body.dataset.printed = JSON.stringify([{theme}, {drawn}])"
    opened.page.evaluate(f"() => {{ window.print = () => {{ {seen}; }}; }}")
    opened.page.click("text=Print")
    printed = opened.page.wait_for_selector("[data-printed]").get_attribute("data-printed")
    assert json.loads(printed) == ["light", [True] * 2]
    assert opened.page.evaluate(theme) == "dark"


def test_definitions_open_and_close(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path))
    page, panel = opened.page, opened.page.locator("#definition")
    page.click("button.term:text-is('Breakdown')")
    assert "Each instant of a step belongs to exactly one category" in panel.inner_text()
    page.keyboard.press("Escape")
    assert not panel.is_visible()
    assert page.evaluate("document.activeElement.textContent") == "Breakdown"
    page.locator("button.term:text-is('Device busy')").focus()
    page.keyboard.press("Enter")
    assert "at least one kernel runs" in panel.inner_text()
    page.mouse.click(2, 2)
    assert not panel.is_visible()


def test_the_tree_of_modules_by_keyboard(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path)
    found = [("Net_0", 0, None), ("Block_0", 1, 0), ("Linear_0", 2, 1), ("Block_1", 1, 0)]
    rows = tuple(ModuleRow(name, depth, above, 3, 9000, 0, 3000, 0, None, None) for name, depth, above in found)
    ranks = (replace(rank, modules=ModuleTree(rows, "python", 3, 3000, 0)) for rank in report.ranks)
    opened = open_page(replace(report, ranks=tuple(ranks)), view="modules")
    page = opened.page

    def shown() -> list[str]:
        return [str(text) for text in page.locator("#table-modules tbody .name").all_inner_texts()]

    assert shown() == ["Net_0", "Block_0", "Linear_0", "Block_1"]
    page.focus("#table-modules tbody tr[tabindex='0']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert shown() == ["Net_0", "Block_0", "Block_1"]
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"
    page.keyboard.press("ArrowLeft")
    assert "Net_0" in page.evaluate("document.activeElement.textContent")
    page.fill("#table-modules input[type=search]", "linear")
    assert shown() == ["Net_0", "Block_0", "Linear_0"]


def test_a_finding_leads_to_the_view_with_its_figures(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(analyze(training(fetch_us=5000).write(tmp_path / "rank0.pt.trace.json")))
    opened.page.click("article.finding a[href^='#']")
    opened.page.wait_for_selector(".tl-plot")
    assert opened.page.inner_text("main h1") == "Timeline"


@pytest.mark.parametrize("allowed", [True, False])
def test_each_line_of_a_fix_can_be_copied(tmp_path: Path, browser: Any, allowed: bool) -> None:
    report = analyze(training(fetch_us=5000).write(tmp_path / "rank0.pt.trace.json"))
    (tmp_path / "page.html").write_bytes(render_html(page_json(report), "run", "x"))
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"] if allowed else [])
    page = context.new_page()
    if not allowed:  # as on an address without HTTPS
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        page.add_init_script("document.execCommand = () => (globalThis.copied = String(getSelection()), true)")
    page.goto((tmp_path / "page.html").as_uri())
    line = page.locator("article.finding .code-line").first
    line.locator("button").click()
    page.wait_for_selector(".copy.done")
    found = page.evaluate("navigator.clipboard.readText()" if allowed else "globalThis.copied")
    assert found == line.locator("code").inner_text()
    context.close()
