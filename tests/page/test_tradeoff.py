"""A trade-off table: the picture, every variant with its reason, limits in the address, and layers."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.documents import page_json
from lightning_perf.inference.results.tradeoff import Tradeoff
from tests.page.samples import HOSTILE, poisoned
from tests.page.tradeoff_sample import hand_made_tradeoff


@pytest.fixture
def document() -> Tradeoff:
    return hand_made_tradeoff()


def kept(opened: Any) -> list[str]:
    """The variants in the table: those within the limits."""
    return [text.split()[0] for text in opened.texts("#table-variants tbody th")]


def test_every_variant_is_there_and_the_picture_is_that_of_the_document(document: Tradeoff, open_page: Any) -> None:
    assert Tradeoff.from_json(document.to_json()) == document
    opened = open_page(page_json(document), kind="inference")
    opened.draw_charts()
    shown = opened.page.inner_text("main")
    assert "It is within both limits." in shown
    assert "pruned needs training data" in shown
    assert kept(opened) == ["compiled"]
    assert "recommended" in opened.texts("#table-variants tbody tr")[0]
    assert "2.00× (1.75–2.25)" in opened.texts("#table-variants tbody tr")[0]
    traces = opened.page.evaluate("document.querySelector('.chart').data.map((t) => [t.mode, t.x, t.y])")
    assert traces[0] == ["lines", [2.0, 4.0, 10.4], [88, 90, 90]]  # the staircase
    assert traces[1:] == [["markers", [x], [y]] for x, y in ((8, 90), (4, 90), (2, 88), (4, 90))]  # the ring is last
    assert opened.page.evaluate("document.querySelector('.chart').layout.xaxis.type") == "log"
    areas = opened.page.evaluate("document.querySelector('.chart').data.slice(1, 4).map((t) => t.marker.size ** 2)")
    assert areas[0] / areas[2] == pytest.approx(4)


def test_limits_filter_and_stay_in_the_address(document: Tradeoff, open_page: Any) -> None:
    opened = open_page(page_json(document), kind="inference")
    opened.draw_charts()
    page = opened.page
    assert "1 variant of 4 within the limits." in page.inner_text("main")
    page.fill("#max_drop", "2.5")
    assert kept(opened) == ["compiled", "int8"]
    page.fill("#max_ms", "3")
    assert kept(opened) == ["int8"]
    assert "max_ms=3" in page.url
    assert "max_drop=2.5" in page.url
    dimmed = "document.querySelector('.chart').data.slice(1, 4).map((trace) => trace.opacity < 1)"
    page.wait_for_function(f"String({dimmed}) === 'true,true,false'")
    page.reload()
    page.wait_for_selector("#table-variants tbody tr")
    assert kept(opened) == ["int8"]
    for button in page.locator("button:text-is('no limit')").all():
        button.click()
    assert kept(opened) == ["compiled", "eager", "int8"]
    page.focus("input[type=range] >> nth=0")
    page.keyboard.press("Home")
    assert kept(opened) == []


def test_of_many_variants_those_that_matter_are_named(document: Tradeoff, open_page: Any) -> None:
    others = tuple(replace(document.rows[1], variant=f"other-{number}") for number in range(10))
    many = replace(document, rows=(*document.rows, *others))
    named = "document.querySelector('.chart').layout.annotations.map((item) => item.text)"
    opened = open_page(page_json(many), kind="inference")
    opened.draw_charts()
    assert sorted(opened.page.evaluate(named)) == ["compiled", "eager", "int8"]


def test_another_batch_size_is_chosen_by_menu_and_link(document: Tradeoff, open_page: Any) -> None:
    opened = open_page(page_json(document), kind="inference")
    opened.page.select_option("#cell", "1")
    assert opened.texts("#table-variants tbody td") == ["No row matches."]  # none is within the limits
    for button in opened.page.locator("button:text-is('no limit')").all():
        button.click()
    assert "64.0 ms" in opened.texts("#table-variants tbody tr")[2]
    opened.page.click("nav a:text-is('Variants')")
    assert "64.0 ms" in opened.texts("#table-calls tbody tr")[2]
    assert "cell=1" in opened.page.url


def test_layers_stand_with_their_bounds(document: Tradeoff, open_page: Any) -> None:
    opened = open_page(page_json(document), kind="inference", view="layers")
    opened.draw_charts()
    rows = [text.split("\t") for text in opened.texts("#table-layers tbody tr")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0][:2] == ["conv", "Conv2d"]
    assert cells[0][5:8] == ["1.00 kMACs", "2.00 kFLOPs", "100 %"]
    assert cells[0][10:12] == ["2.00 ms", "compute"]
    assert cells[1][10:] == ["9.00 ms", "memory", "aten::sort"]
    assert "no formula is known for operators in 1 layer" in opened.page.inner_text("main")
    assert "4.00× the least time" in opened.page.inner_text("main")


def test_without_accuracy_count_or_figures(document: Tradeoff, open_page: Any) -> None:
    rows = tuple(replace(each, accuracy=None) for each in document.rows)
    bare = replace(document, rows=rows, count=None, roofline=None, recommendation=None)
    opened = open_page(page_json(bare), kind="inference")
    opened.draw_charts()
    assert opened.page.locator("#max_drop").count() == 0
    assert opened.page.locator("nav a.empty").all_text_contents() == ["Layers"]
    failed = tuple(replace(each, reason="out of memory", latencies=()) for each in rows)
    opened = open_page(page_json(replace(bare, rows=failed)), kind="inference")
    assert kept(opened) == []
    opened.show("variants")
    opened = open_page(page_json(replace(bare, rows=failed, cells=())), kind="inference")
    assert "Nothing was measured." in opened.page.inner_text("main")


def test_hostile_names_stay_text(document: Tradeoff, open_page: Any) -> None:
    hostile = poisoned(json.loads(page_json(document)))
    opened = open_page(json.dumps(hostile).encode(), kind="inference", title=HOSTILE)
    for view in ("tradeoff", "variants", "layers"):
        opened.show(view)
        opened.draw_charts()
        assert opened.page.evaluate("globalThis.pwned") is None
        assert opened.page.locator("main img, main script, main a[href^=http], main iframe").count() == 0
    opened.show("tradeoff")
    assert "<img src=x onerror=" in opened.page.inner_text("#table-variants tbody tr:first-child th")
