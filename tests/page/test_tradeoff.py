"""A trade-off table: the picture, every variant with its reason, limits in the address, and layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.compare.statistics.values import Estimate
from lightning_perf.inference.accuracy import Accuracy
from lightning_perf.inference.command import write_outputs
from lightning_perf.inference.count_document import Count, LayerCount
from lightning_perf.inference.measure import Effort, Latency
from lightning_perf.inference.roofline import Peaks, roofline
from lightning_perf.inference.tradeoff import (
    Cell,
    ColdStart,
    Machine,
    Recommendation,
    Reload,
    Row,
    Tradeoff,
    from_json,
    to_json,
)
from tests.page.samples import HOSTILE, poisoned

CELLS = ((1, 1), (1, 32))


def row(name: str, p50_ms: float, correct: int, size_bytes: int, reason: str | None = None) -> Row:
    latencies = tuple(
        Latency(
            threads=threads,
            batch=batch,
            calls=200,
            p10_ms=0.9 * p50_ms * batch,
            p50_ms=p50_ms * batch,
            p90_ms=1.2 * p50_ms * batch,
            p99_ms=None,
            cpu_ms=p50_ms,
            device_ms=None,
            throughput=1000 / p50_ms,
            speedup=None if name == "eager" else Estimate(8 / p50_ms, 7 / p50_ms, 9 / p50_ms, 0.95, 10, "Walsh"),
        )
        for threads, batch in CELLS
    )
    drop = 90.0 - correct
    return Row(
        variant=name,
        transforms=(),
        runtime=name,
        summary=f"what {name} does",
        reason=reason,
        parameters=1000,
        size_bytes=None if reason else size_bytes,
        build_s=1.0,
        cold=None if reason else ColdStart(10.0, 2.0, 10**8, None),
        reload=None if reason else Reload(0.0, 1e-3),
        output_error=None if reason else 1e-6,
        accuracy=None if reason else Accuracy(correct, 100, 100, 0.8, 0.95, 0.99, drop, drop - 2, drop + 2),
        latencies=() if reason else latencies,
        provenance={"dtype": "float32"},
    )


@pytest.fixture
def document() -> Tradeoff:
    """Three variants that run and one that does not: int8 is the fastest and loses two points."""
    rows = (
        row("eager", 8.0, 90, 4000),
        row("compiled", 4.0, 90, 4000),
        row("int8", 2.0, 88, 1000),
        row("pruned", 1.0, 0, 0, reason="pruned needs training data"),
    )
    layers = (
        LayerCount("conv", "Conv2d", 1, (1, 8, 6, 6), 1000, 2000, 80, 400, 5.0),
        LayerCount("", "Net", 1, (1, 5), 0, 0, 0, 9000, 0.0, ("aten::sort",)),
    )
    count = Count((1, 1, 8, 8), (1, 5), layers, 1000, 2000, 80, 0, 320, 9400, 700, 2000 / 9400)
    cells = tuple(
        Cell(threads, batch, Estimate(1.0, 0.99, 1.02, 0.95, 10, "Walsh"), 0.02, ("int8", "compiled"), ("int8",))
        for threads, batch in CELLS
    )
    return Tradeoff(
        schema_version=1,
        method_version=1,
        tool_version="0.1.0",
        model="Net",
        input_shape=(1, 8, 8),
        machine=Machine("A CPU", "cpu", "A CPU", 2, "Linux", 0.1, 1.0, {"torch": "2.0"}),
        effort=Effort(),
        validation_inputs=100,
        notes=("A note.",),
        rows=rows,
        cells=cells,
        recommendation=Recommendation(5.0, 1.0, "compiled", "It is within both limits."),
        count=count,
        roofline=roofline(count, Peaks("A CPU", "float32", 1, 1e6, 1e6, "an example")),
    )


def kept(opened: Any) -> dict[str, str]:
    rows = [text.split("\t") for text in opened.texts("#table-variants tbody tr")]
    return {cells[0].split("\n")[0].split()[0]: cells[1].strip() for cells in rows}


def test_every_variant_is_there_and_the_picture_is_that_of_the_document(document: Tradeoff, open_page: Any) -> None:
    assert from_json(to_json(document)) == document
    opened = open_page(to_json(document), kind="inference")
    opened.draw_charts()
    shown = opened.page.inner_text("main")
    assert "It is within both limits." in shown
    assert "pruned needs training data" in shown
    assert kept(opened) == {"eager": "broken", "compiled": "kept", "int8": "broken", "pruned": "not measured"}
    assert "recommended" in opened.texts("#table-variants tbody tr")[1]
    assert "2.00× (1.75 – 2.25)" in opened.texts("#table-variants tbody tr")[1]
    traces = opened.page.evaluate("document.querySelector('.chart').data.map((t) => [t.mode, t.x, t.y])")
    assert traces[0] == ["lines", [2.0, 4.0, 10.4], [88, 90, 90]]  # the staircase
    assert traces[1:] == [["markers", [x], [y]] for x, y in ((8, 90), (4, 90), (2, 88), (4, 90))]  # the ring is last
    assert opened.page.evaluate("document.querySelector('.chart').layout.xaxis.type") == "log"
    areas = opened.page.evaluate("document.querySelector('.chart').data.slice(1, 4).map((t) => t.marker.size ** 2)")
    assert areas[0] / areas[2] == pytest.approx(4)


def test_limits_filter_and_stay_in_the_address(document: Tradeoff, open_page: Any) -> None:
    opened = open_page(to_json(document), kind="inference")
    opened.draw_charts()
    page = opened.page
    assert "1 variant of 4 within the limits." in page.inner_text("main")
    page.fill("#max_drop", "2.5")
    assert kept(opened)["int8"] == "kept"
    assert kept(opened)["compiled"] == "kept"
    page.fill("#max_ms", "3")
    assert {name for name, limit in kept(opened).items() if limit == "kept"} == {"int8"}
    assert "max_ms=3" in page.url
    assert "max_drop=2.5" in page.url
    dimmed = "document.querySelector('.chart').data.slice(1, 4).map((trace) => trace.opacity < 1)"
    page.wait_for_timeout(100)
    assert page.evaluate(dimmed) == [True, True, False]
    page.reload()
    page.wait_for_selector("#table-variants tbody tr")
    assert {name for name, limit in kept(opened).items() if limit == "kept"} == {"int8"}
    assert "recommended" in opened.texts("#table-variants tbody tr")[1]  # what was recommended stays so
    for button in page.locator("button:text-is('no limit')").all():
        button.click()
    assert list(kept(opened).values()) == ["kept", "kept", "kept", "not measured"]
    page.focus("input[type=range] >> nth=0")
    page.keyboard.press("Home")
    assert list(kept(opened).values()) == ["broken", "broken", "broken", "not measured"]


def test_another_batch_size_is_chosen_by_menu_and_link(document: Tradeoff, open_page: Any) -> None:
    opened = open_page(to_json(document), kind="inference")
    opened.page.select_option("#cell", "1")
    assert "64.0 ms" in opened.texts("#table-variants tbody tr")[2]
    opened.page.click("nav a:text-is('Variants')")
    assert "64.0 ms" in opened.texts("#table-calls tbody tr")[2]
    assert "cell=1" in opened.page.url


def test_layers_stand_with_their_bounds(document: Tradeoff, open_page: Any) -> None:
    opened = open_page(to_json(document), kind="inference")
    opened.show("layers")
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
    bare = json.loads(to_json(document))
    for item in bare["rows"]:
        item["accuracy"] = None
    unknown = {"count": None, "roofline": None, "recommendation": None}
    opened = open_page(json.dumps(bare | unknown).encode(), kind="inference")
    opened.draw_charts()
    assert opened.page.locator("#max_drop").count() == 0
    assert opened.page.locator("nav a.empty").all_inner_texts() == ["Layers"]
    failed = [{**item, "reason": "out of memory", "latencies": []} for item in bare["rows"]]
    opened = open_page(json.dumps({**bare, "rows": failed}).encode(), kind="inference")
    assert list(kept(opened).values()) == ["not measured"] * 4
    opened.show("variants")
    opened = open_page(json.dumps({**bare, "rows": failed, "cells": []}).encode(), kind="inference")
    assert "Nothing was measured." in opened.page.inner_text("main")


def test_hostile_names_stay_text(document: Tradeoff, open_page: Any) -> None:
    hostile = poisoned(json.loads(to_json(document)))
    opened = open_page(json.dumps(hostile).encode(), kind="inference", title=HOSTILE)
    for view in ("tradeoff", "variants", "layers"):
        opened.show(view)
        opened.draw_charts()
        assert opened.page.evaluate("globalThis.pwned") is None
        assert opened.page.locator("main img, main script, main a[href^=http], main iframe").count() == 0
    opened.show("tradeoff")
    assert "<img src=x onerror=" in opened.page.inner_text("#table-variants tbody tr:first-child th")


def test_the_command_writes_it(document: Tradeoff, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.html"
    write_outputs(document, html=target)
    page = target.read_text()
    assert 'data-name="Net" data-kind="inference"' in page
    assert "It is within both limits." in page
    assert "compiled" in capsys.readouterr().out
