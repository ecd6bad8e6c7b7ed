"""Every mistake in mixed precision has a page, `explain` prints it, and all reports name the mistake."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import msgspec
import pytest

from lightning_perf import cli
from lightning_perf.findings.pages import mistake_page_url, read_mistake_symptoms, read_rule_page, read_symptoms
from lightning_perf.report.build import build_report
from lightning_perf.report.sections.short import short_blocks
from lightning_perf.run_files.numerics.precision import Fp32Arithmetic, PrecisionMistake, PrecisionSetting, RunPrecision
from tests.support.shown import console_text

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "lightning_perf" / "findings" / "pages" / "mistakes"
KINDS = {
    kind
    for module in (ROOT / "lightning_perf" / "callbacks" / "mistakes").glob("*.py")
    for kind in re.findall(r'PrecisionMistake\(\s+"([a-z0-9-]+)"', module.read_text(encoding="utf-8"))
} | {"clip-scaled-gradients", "unscale-missing", "fused-clipping"}
SECTIONS = ["Symptom", "How it is found", "Fix", "How to verify", "When not to"]
MISTAKE = PrecisionMistake(
    "clip-scaled-gradients",
    "high",
    "Gradients are clipped",
    ("They are scaled.",),
    "Clip later.",
    "net.0",
    "model.py:31",
)


def test_every_mistake_has_a_page_and_every_page_a_mistake():
    assert KINDS == {page.stem for page in PAGES.glob("*.md")} == set(read_mistake_symptoms())
    assert not set(read_symptoms()) & KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_page_has_all_sections(kind):
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {kind}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert "```py" in text.partition("## Fix")[2].partition("## How to verify")[0]


def test_the_page_of_all_mistakes_links_each():
    index = (ROOT / "docs" / "precision-mistakes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(\.\./lightning_perf/findings/pages/mistakes/([a-z0-9-]+)\.md\)", index)) == KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_explain_prints_the_page(kind, capsys):
    assert cli.main(["explain", kind]) == 0
    assert capsys.readouterr().out == read_rule_page(kind)


def test_explain_lists_mistakes_and_suggests_them(capsys):
    assert cli.main(["explain"]) == 0
    printed = capsys.readouterr().out
    assert "Mistakes in mixed precision:\n" in printed
    assert all(f"{kind:25}  " in printed for kind in KINDS)
    assert cli.main(["explain", "half-los"]) == 2
    assert "Did you mean 'half-loss'?" in capsys.readouterr().err


def test_all_reports_name_the_mistake(tmp_path):
    setting = PrecisionSetting("16-mixed", None, False, False, (), Fp32Arithmetic(False, False, True))
    report = build_report((), precision=RunPrecision(setting, mistakes=(MISTAKE,)))
    printed = io.StringIO()
    report.print(file=printed, width=100)
    text = printed.getvalue()
    assert "Mistakes in mixed precision\n" in text
    assert "1. Gradients are clipped in net.0 (model.py:31)  [clip-scaled-gradients · high]" in text
    assert "Fix: Clip later." in text
    assert "lightning-perf explain clip-scaled-gradients" in text
    markdown = report.to_markdown()
    assert "### Mistakes in mixed precision" in markdown.partition("<details>")[0]
    assert f"[clip-scaled-gradients]({mistake_page_url('clip-scaled-gradients')})" in markdown
    (saved,) = json.loads(msgspec.json.encode(report))["precision"]["mistakes"]
    assert saved["line"] == "model.py:31"
    short = console_text(short_blocks(report, None))
    assert "Gradients are clipped in net.0 (model.py:31)" in short
    assert "Fix: Clip later." in short
