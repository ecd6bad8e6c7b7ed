"""A comparison and a refusal as blocks: the same figures in every format, whatever the names hold."""

import re
from collections import Counter

import pytest
from msgspec.structs import replace

from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Comparison, UnfairError
from lightning_perf.compare.verdicts.gates import Settings, parse_gate
from lightning_perf.show.blocks import Line, Table
from tests.compare.support import write_arms
from tests.support.shown import all_blocks, console_text, table_of, texts

HOSTILE = "[red]a\x1b[31m|`b`\n# <script>alert(1)</script> &lt; *x* $y$ \u202e"


@pytest.fixture
def comparison(tmp_path):
    gates = tuple(map(parse_gate, ("step_time<=1.05", "accuracy>=-0.01", "host_memory<=1", "step_time<=0.5")))
    settings = Settings(goal=0.9, gates=gates)
    return compare_arms(write_arms(tmp_path, train__precision="16-mixed"), settings)


def unescaped(markdown):
    return re.sub(r"\\([\\`*_{}\[\]<>|#~$&])", r"\1", markdown)


def test_the_verdict_comes_first_then_gates_results_differences_and_runs(comparison):
    blocks = list(all_blocks(comparison.blocks()))
    tables = [block.title for block in blocks if isinstance(block, Table)]
    declared, scatter = tables[2], tables[5]
    assert tables == ["Gates", "Differences", declared, "Arms", "Metrics over the runs used", scatter]
    assert declared == "Differences between the arms, all of them declared"
    assert scatter.startswith("Scatter of the runs: ")
    verdict = comparison.candidates[0].verdict
    assert Line(verdict.headline, "strong", label="Verdict", label_style="strong") in blocks
    assert console_text(comparison.blocks()).startswith(f"Verdict  {verdict.headline}\n  {verdict.details[0]}\n")
    title, result, first, *_ = unescaped(comparison.to_markdown()).split("\n\n")
    assert (title, first) == ("# Comparison with fp32: amp faster", f"**Verdict** {verdict.headline}")
    assert result == "**Failed: 1 of 4 gates failed.**"


def test_the_figures_are_those_of_the_document(comparison):
    console = console_text(comparison.blocks())
    result = comparison.candidates[0].metrics[0].estimate
    assert f"step time −{100 * (1 - result.value):.1f} %" in console
    assert f"a speed-up of {1 / result.value:.3f} ({1 / result.high:.3f} to {1 / result.low:.3f})" in console
    rows = {row[0].text: row for row in table_of(comparison.blocks(), "Gates").rows}
    gate = comparison.gates[0]
    row = rows["step_time<=1.05, amp"]
    assert [cell.text for cell in row[1:5]] == ["passed", *(f"{v:.4g}" for v in (gate.value, gate.low, gate.high))]
    assert [row[1].troubled for row in rows.values()] == [False, False, False, True]
    runs = table_of(comparison.blocks(), "Metrics over the runs used").rows
    assert [cell.text for cell in runs[0][:5]] == ["step time (ms)", "fp32", "6", "100.8", "2.3"]
    assert runs[0][3].value == pytest.approx(100.83, abs=0.01)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_console_loses_no_figure(comparison, width):
    wide, narrow = (console_text(comparison.blocks(), width) for width in (400, width))
    # Where the columns are parted, titles of rows are in each part.
    assert not Counter(re.findall(r"[^\s─]", wide)) - Counter(re.findall(r"[^\s─]", narrow))
    assert max(map(len, narrow.splitlines())) <= width
    for word in ("Hodges–Lehmann", "throughput", "(samples/s)"):
        assert word in narrow


def test_hostile_names_are_shown_and_do_nothing(tmp_path):
    made = write_arms(tmp_path, train__precision=HOSTILE)
    hostile = compare_arms({"fp32": made["fp32"], HOSTILE: made["amp"]})
    console, markdown = console_text(hostile.blocks()), hostile.to_markdown()
    for text in (console, markdown):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert r"\x1b" in text
    assert "[red]a" in console
    assert not re.search(r"(?<!\\)(<script|&lt;)", markdown)
    rows = [line for line in markdown.splitlines() if line.startswith("| step time")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in rows] == [7, 12, 12, 8]
    assert Comparison.from_json(hostile.to_json()) == hostile


def test_what_is_unknown_is_a_dash_and_never_a_number(tmp_path):
    single = compare_arms({name: runs[:1] for name, runs in write_arms(tmp_path).items()})
    (row,) = (row for row in texts(table_of(single.blocks(), "Differences")) if row[0].startswith("step time"))
    assert row == ("step time, amp", "−6.0 %", "–", "1", "−6.0 %", "–")
    rows = texts(table_of(single.blocks(), "Metrics over the runs used"))
    assert next(row[4] for row in rows if row[1] == "amp") == "–"  # SD
    for text in (console_text(single.blocks()), single.to_markdown()):
        assert not re.search(r"\b(nan|None|inf)\b", text)


def test_small_figures_next_to_large_ones_are_not_zero(tmp_path):
    arms = write_arms(tmp_path, (123456.0, 103000.0, 99000.0), (0.94, 0.959, 0.937))
    assert "0.00094" in console_text(compare_arms(arms).blocks())


def test_a_refusal_shows_its_rows_and_what_to_do(tmp_path, capsys):
    with pytest.raises(UnfairError) as refusal:
        compare_arms(write_arms(tmp_path, train__batch_size=64, version__torch=HOSTILE))
    document = replace(refusal.value.refusal, notes=("Block 2: failed.",))
    document.print(width=400)
    text, markdown = capsys.readouterr().err, unescaped(document.to_markdown())
    assert "- Block 2: failed." in markdown
    assert "Block 2: failed." in text
    assert ("train.batch_size", "32", "64") in texts(table_of(document.blocks(), ""))
    for shown in (text, markdown):
        assert "--treatment train.batch_size" in shown
        assert "--allow train.batch_size" in shown
        assert "\x1b" not in shown


def test_what_differs_within_an_arm_is_not_offered_as_the_treatment(tmp_path):
    made = write_arms(tmp_path / "a")
    made["amp"][:1] = write_arms(tmp_path / "b", code__revision="c2")["amp"][:1]
    with pytest.raises(UnfairError) as refusal:
        compare_arms(made)
    text = console_text(refusal.value.refusal.blocks())
    expected = "code.revision differs between runs of the same arm. If this does not matter, add --allow code.revision."
    assert expected in text
    assert "--treatment" not in text
