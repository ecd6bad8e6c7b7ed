"""A finding on the page: its rule with a link, its fix, and its estimated saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_perf.documents import page_json
from lightning_perf.findings.pages import rule_page_url
from lightning_perf.page.html import render_html
from lightning_perf.report.build import analyze
from tests.findings.recordings import training


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


def test_the_rule_links_to_its_page(tmp_path: Path, open_page: Any) -> None:
    report = analyze(training(fetch_us=5000).write(tmp_path / "rank0.pt.trace.json"))
    (finding,) = report.findings
    opened = open_page(report)
    link = opened.page.locator("article.finding a[target]")
    assert link.inner_text() == "input-bound"
    assert link.get_attribute("href") == rule_page_url("input-bound")
    shown = opened.page.inner_text("article.finding")
    assert f"Fix: {finding.action}" in " ".join(shown.split())
    assert "Estimated saving: " in shown
