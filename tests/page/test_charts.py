"""Charts: totals on hover, a way back from a zoom, marks on cut axes, the legend of sizes, the recommended first."""

from pathlib import Path
from typing import Any

from lightning_perf.documents import page_json
from tests.page.samples import hand_made_report, trained_precision
from tests.page.tradeoff_sample import hand_made_tradeoff


def test_a_bar_tells_the_total(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path))
    opened.draw_charts()
    told = opened.page.evaluate("document.querySelector('.chart').data[0].hovertext[0]")
    assert told == "device compute: 600 µs of 1.00 ms in total<br>step 0"
    opened.show("distributed")
    opened.draw_charts()
    told = opened.page.evaluate("document.querySelector('.chart').data[0].hovertext")
    assert [text.split("<br>")[0].partition(": ")[2] for text in told] == [
        "400 µs of 1.00 ms in total",
        "600 µs of 1.00 ms in total",
    ]


def test_a_zoomed_chart_can_be_reset(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path))
    opened.draw_charts()
    page, reset = opened.page, opened.page.locator(".chart-frame .reset").first
    whole = page.evaluate("document.querySelector('.chart')._fullLayout.yaxis.range")
    assert reset.is_hidden()
    page.evaluate("Plotly.relayout(document.querySelector('.chart'), {'yaxis.range[0]': 0.2, 'yaxis.range[1]': 0.4})")
    reset.wait_for(state="visible")
    reset.click()
    reset.wait_for(state="hidden")
    assert page.evaluate("document.querySelector('.chart')._fullLayout.yaxis.range") == whole


def test_an_axis_that_leaves_out_0_says_so(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(page_json(hand_made_tradeoff()), kind="inference", view="tradeoff")
    opened.draw_charts()
    assert opened.texts(".chart-note") == ["The vertical axis does not start at 0."]
    opened = open_page(hand_made_report(tmp_path, trained_precision()))
    opened.draw_charts()
    assert set(opened.texts(".chart-note")) <= {""}
    opened.show("precision")
    opened.draw_charts()
    assert "The vertical axis does not start at 0." in opened.texts(".chart-note")  # the losses


def test_areas_have_a_legend_and_the_recommended_variant_comes_first(open_page: Any) -> None:
    opened = open_page(page_json(hand_made_tradeoff()), kind="inference", view="tradeoff")
    opened.draw_charts()
    sizes = opened.page.locator('[aria-label="Size of a variant\'s files"] li')
    assert sizes.all_inner_texts() == ["3.91 KiB", "1000 B", "250 B"]
    widths = [float(mark.get_attribute("r")) for mark in sizes.locator("circle").all()]
    drawn = opened.page.evaluate(
        "document.querySelector('.chart').data.filter((item) => item.customdata?.[0][0] === 'compiled')[0].marker.size"
    )
    assert 2 * widths[0] == drawn  # 4,000 bytes
    assert widths[1] == widths[0] / 2  # a quarter of the area
    assert opened.texts("#table-variants tbody th")[0].startswith("compiled")
    opened.show("variants")
    assert opened.texts("#table-calls tbody th")[0].split() == ["compiled", "recommended"]


def test_names_in_a_chart_do_not_overlap(open_page: Any) -> None:
    for width in (390, 1400, 1920):
        opened = open_page(
            hand_made_tradeoff().to_json().encode(),
            kind="inference",
            view="tradeoff",
            viewport={"width": width, "height": 900},
        )
        opened.draw_charts()
        boxes = [text.bounding_box() for text in opened.page.locator(".annotation-text").all()]
        assert len(boxes) == 3
        for i, first in enumerate(boxes):
            for second in boxes[:i]:
                apart_x = abs(first["x"] - second["x"]) >= min(first["width"], second["width"])
                assert apart_x or abs(first["y"] - second["y"]) >= min(first["height"], second["height"]) - 2
