"""A finding on the page: its rule with a link, its fix, and its estimated saving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightning_perf.findings.pages import rule_page_url
from lightning_perf.report.build import analyze
from tests.findings.recordings import training


def test_the_rule_links_to_its_page_unless_the_address_is_not_ours(tmp_path: Path, open_page: Any) -> None:
    report = analyze(training(fetch_us=5000).write(tmp_path / "rank0.pt.trace.json"))
    (finding,) = report.findings
    opened = open_page(report)
    link = opened.page.locator("article.finding a.rule")
    assert link.inner_text() == "input-bound"
    assert link.get_attribute("href") == rule_page_url("input-bound")
    shown = opened.page.inner_text("article.finding")
    assert f"Fix: {finding.action}" in " ".join(shown.split())
    assert "Estimated saving: " in shown
    document = json.loads(report.to_json())
    assert document["findings"][0]["page"] == rule_page_url("input-bound")
    for address in ("javascript:alert(1)", "https://evil.example/x", "https://github.com/a\" onclick='x'", None):
        document["findings"][0]["page"] = address
        opened = open_page(json.dumps(document).encode())
        assert opened.page.locator("article.finding a").count() == 0
        assert opened.page.inner_text("article.finding code.rule") == "input-bound"
