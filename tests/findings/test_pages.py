"""Every rule and every mistake in mixed precision has a page with all sections, and `explain` prints it."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf import PerfReport, cli
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.pages import read_rule_page, read_symptoms, rule_page_url
from lightning_perf.findings.whole_run import RULE_IDS
from lightning_perf.report.build import build_report
from lightning_perf.report.sections.report import short_blocks
from lightning_perf.run_files.numerics.precision import Fp32Arithmetic, PrecisionMistake, PrecisionSetting, RunPrecision
from tests.conftest import corpus_rows
from tests.findings.examples import EXAMPLES, PAGES, example_text, with_example
from tests.support.shown import console_text

FINDINGS = PAGES.parent
SECTIONS = ["Symptom", "Example", "Threshold", "Fix", "How to verify", "When not to"]
MISTAKE_SECTIONS = ["Symptom", "How it is found", "Fix", "How to verify", "When not to"]
MISTAKES = {
    kind
    for module in (FINDINGS.parent / "callbacks" / "mistakes").glob("*.py")
    for kind in re.findall(r'"([a-z]+(?:-[a-z]+)+)"', module.read_text(encoding="utf-8"))
} - {"bf16-mixed", "16-mixed"} | {"fused-clipping"}
MISTAKE = PrecisionMistake(
    "half-loss", "high", "A loss is in FP16", ("It overflows.",), "Call .float().", "net.0", "model.py:31"
)


def pages() -> list[str]:
    return sorted(page.stem for page in PAGES.glob("*.md"))


def test_every_rule_has_a_page_and_every_page_a_rule() -> None:
    assert not RULE_IDS & MISTAKES
    assert set(pages()) == RULE_IDS | MISTAKES
    assert set(EXAMPLES) == RULE_IDS
    assert list(read_symptoms()) == pages()


def test_the_index_links_every_page() -> None:
    index = (FINDINGS.parents[1] / "docs" / "findings.md").read_text(encoding="utf-8")
    linked = re.findall(r"\(\.\./lightning_perf/findings/pages/([a-z0-9-]+)\.md\)", index)
    assert sorted(linked) == pages()


@pytest.mark.parametrize("rule", pages())
def test_a_page_has_all_sections(rule: str) -> None:
    text = (PAGES / f"{rule}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {rule}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == (SECTIONS if rule in RULE_IDS else MISTAKE_SECTIONS)
    for section in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
        assert len(section.split()) >= (8 if rule in RULE_IDS else 5)
    fix = text.partition("## Fix")[2].partition("## How to verify")[0]
    assert "```" in fix
    assert "lightning-perf " in text.partition("## How to verify")[2]


@pytest.fixture(scope="module", params=[rule for rule in EXAMPLES if not EXAMPLES[rule].corpus])
def made(request: pytest.FixtureRequest) -> tuple[str, PerfReport, Finding]:
    """A rule whose example a test makes, the report of the example, and the finding in it."""
    report = EXAMPLES[request.param].analyze(None)
    found = next(one for one in (*report.findings, *report.fit_findings) if one.kind == request.param)
    return request.param, report, found


def test_an_example_is_what_the_rule_finds_today(made: tuple[str, PerfReport, Finding]) -> None:
    rule, report, _ = made
    text = (PAGES / f"{rule}.md").read_text(encoding="utf-8")
    assert with_example(text, rule, report) == text, f"run: python -m tests.findings.examples --write {rule}"
    assert f"[{rule} · " in text


@pytest.mark.corpus
@pytest.mark.skipif(not corpus_rows(), reason="needs the real traces")
@pytest.mark.parametrize("rule", [rule for rule in EXAMPLES if EXAMPLES[rule].corpus])
def test_an_example_of_a_published_recording_is_what_the_rule_finds_today(rule: str, corpus: Path) -> None:
    text, report = (PAGES / f"{rule}.md").read_text(encoding="utf-8"), EXAMPLES[rule].analyze(corpus)
    assert with_example(text, rule, report) == text, f"run: python -m tests.findings.examples --write {rule}"
    assert f"[{rule} · " in text


def test_explain_prints_the_page_as_it_is_where_it_is_piped(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "input-bound"]) == 0
    printed = capsys.readouterr().out
    assert printed == read_rule_page("input-bound")
    assert printed.startswith("# input-bound\n\n## Symptom\n\nThe training thread waits")
    assert "<!--" not in printed
    assert "\x1b" not in printed
    assert "](https://github.com/lightning-perf/lightning_perf/blob/main/docs/findings.md#advice" in printed
    assert "](../" not in printed


def test_explain_sets_the_page_in_type_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["explain", "sync-points"]) == 0
    printed = terminal.getvalue()
    assert "## " not in printed
    assert "\x1b[" in printed
    assert "self" in printed


def test_without_a_rule_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain"]) == 0
    text = capsys.readouterr().out
    for rule, symptom in read_symptoms().items():
        assert symptom.endswith(".")
        assert f"{rule:25}  {symptom}\n" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "near"), [("input-bund", "input-bound"), ("half-los", "half-loss"), ("no such rule", None), ("\x1b", None)]
)
def test_an_unknown_rule_is_an_error_on_one_line(
    name: str, near: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", name]) == 2
    hint = f"Did you mean {near!r}? " if near else ""
    expected = f"lightning-perf: {name!r}: unknown rule. {hint}To list all rules, run lightning-perf explain.\n"
    assert capsys.readouterr() == ("", expected)


def test_explain_needs_no_torch() -> None:
    script = (
        "import sys; from lightning_perf.cli import main; main(['explain', 'input-bound']); "
        "sys.exit(bool({'torch', 'lightning', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_titles_and_evidence_count_in_english(made: tuple[str, PerfReport, Finding]) -> None:
    _, _, found = made
    for text in (found.title, *found.evidence, found.action, found.model):
        assert not re.search(r"(?<![\d.,])1 (launches|kernels|copies|casts|gaps|operators|cores|threads)\b", text)
        assert " a step" not in text.replace("as a step has", "")


def test_all_reports_name_a_mistake() -> None:
    setting = PrecisionSetting("16-mixed", None, False, False, (), Fp32Arithmetic(False, False, True))
    report = build_report((), precision=RunPrecision(setting, mistakes=(MISTAKE,)))
    printed = io.StringIO()
    report.print(file=printed, width=100)
    assert "Mistakes in mixed precision\nEach fix changes the training" in printed.getvalue()
    assert "1. A loss is in FP16 in net.0 (model.py:31)  [half-loss · high]" in printed.getvalue()
    assert "Fix: Call .float()." in printed.getvalue()
    assert "lightning-perf explain half-loss" in printed.getvalue()
    markdown = report.to_markdown()
    assert "### Mistakes in mixed precision" in markdown.partition("<details>")[0]
    assert f"[half-loss]({rule_page_url('half-loss')})" in markdown
    (saved,) = json.loads(report.to_json())["precision"]["mistakes"]
    assert saved["line"] == "model.py:31"
    short = console_text(short_blocks(report, None))
    assert "A loss is in FP16 in net.0 (model.py:31)" in short
    assert "Fix: Call .float()." in short


def test_a_finding_always_has_the_page_of_its_rule() -> None:
    given = Finding("input-bound", "high", "", (), "", None, None, "", page="https://evil.example")
    assert given.page == rule_page_url("input-bound")
    assert rule_page_url("input-bound").endswith("/lightning_perf/findings/pages/input-bound.md")


CHANGED = re.compile(
    r'-mixed"|tf32="on"|batch_size|accumulate_grad_batches|drop_last|limit_val_batches|dropout_p=0|8bit|is_causal'
)
"""Settings with which a training computes something else."""

CHANGED_IN_PROSE = {"host-work", "slow-callback", "slow-checkpoints", "cpu-pauses", "worker-restarts"}
CHANGED_IN_PROSE |= {"activations", "imbalance", "tensor-cores", "padding", "optimizer-state"}
"""Rules with such a fix in words."""


def test_a_fix_that_changes_results_says_so_first(made: tuple[str, PerfReport, Finding]) -> None:
    rule, report, fix = made
    assert bool(fix.changes) == bool(CHANGED.search(fix.action) or rule in CHANGED_IN_PROSE), fix.action
    text = " ".join(example_text(rule, report).split())
    assert bool(re.search(rf"\[{rule} · [^]]+\] Changes results: [^.]+\. ", text)) == bool(fix.changes)
    if report.findings[:1] == (fix,):
        assert report.verdict.next.startswith("Changes results: ") == bool(fix.changes)
