"""The choice of a run: a list that the reader filters, with dates, kinds, step times, verdicts and nested arms."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.documents import page_json
from tests.page.samples import HOSTILE, hand_made_report
from tests.page.server import Server


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(page_json(hand_made_report(tmp_path)))
    return made


def listed(name: str, updated_s: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "run", "updated_s": updated_s, "files": 1, **more}


def test_the_list_has_what_a_reader_needs_to_choose(server: Server, report: dict[str, Any]) -> None:
    day = 86_400.0 * 20_000
    runs = [
        listed(".", day, title="logs", step_ns=178e6, verdict="Input-bound: 33.4 % of the step waits for data"),
        listed("amp/bf16/seed0", day + 60, study="amp"),
        listed("amp", day + 120, kind="study"),
        listed(f"z{HOSTILE}", day - 60),
    ]
    server.answers["data/runs"] = [(200, {"runs": runs, "notes": []})]
    server.answers["data/report ."] = [(200, report)]
    server.answers["data/report amp/bf16/seed0"] = [(200, report)]
    server.open("#run=.")
    page = server.page
    page.wait_for_selector("main .verdict")
    assert page.inner_text("#run") == "logs"
    page.click("#run")
    entries = page.locator(".run-list li").all_inner_texts()
    assert "run · 2024-10-04" in entries[0]
    assert "178 ms per step" in entries[0]
    assert "Input-bound: 33.4 %" in entries[0]
    assert entries[1].startswith("amp\n")
    assert "study" in entries[1]
    assert entries[2].startswith("amp/bf16/seed0")
    assert page.locator(".run-list li.nested").count() == 1
    assert "<img src=x" in entries[3]
    assert page.evaluate("globalThis.pwned") is None
    page.keyboard.type("bf16")
    assert page.locator(".run-list li").count() == 1
    assert "1 of 4 runs" in page.inner_text(".run-panel")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#run').value === 'amp/bf16/seed0'")
    assert page.locator(".run-panel").is_hidden()
    page.click("#run")
    page.keyboard.press("Escape")
    assert page.locator(".run-panel").is_hidden()
    assert page.evaluate("document.activeElement.id") == "run"
    server.open("#run=amp/bf16/seed0&view=compare")
    page.wait_for_selector("#before")
    assert "logs" in page.locator("#before option").all_inner_texts()
