"""The three formats against each other: they show the same figures, whatever the names hold."""

import io
import re
from collections import Counter

import pytest

from lightning_perf.compare.render.tables import arm_table, difference_table, footnotes, gate_table, result_table
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.gates import Settings, parse_gate
from lightning_perf.compare.verdicts.refusal import UnfairError
from lightning_perf.run_files.run_record import Place
from tests.compare.support import write_run

HOSTILE = "[red]a\x1b[31m|`b`\n# <script>alert(1)</script> &lt; *x* $y$ \u202e"


def make(tmp_path, candidate="amp", **facts):
    times = {"fp32": (100.0, 103.0, 99.0, 101.0, 104.0, 98.0), candidate: (94.0, 95.9, 93.7, 94.5, 98.1, 92.0)}
    return {
        name: [
            write_run(
                tmp_path / str(arm) / str(n),
                step_ms=ms,
                started=2.0 * n + arm,
                accuracies=(0.7, 0.9 + 0.001 * ((n + arm) % 3)),
                train__seed=n,
                place=Place("s", name, n, arm, treatment=("precision",)),
                **(facts if arm else {}),
            )
            for n, ms in enumerate(of_arm, start=1)
        ]
        for arm, (name, of_arm) in enumerate(times.items())
    }


@pytest.fixture
def comparison(tmp_path):
    gates = tuple(map(parse_gate, ("step_time<=1.05", "accuracy>=-0.01", "host_memory<=1")))
    settings = Settings(goal=0.9, gates=gates)
    return compare_arms(make(tmp_path, train__precision="16-mixed"), settings)


def console_text(document, *notes, width=400):
    file = io.StringIO()
    document.print(*notes, file=file, width=width)
    return file.getvalue()


def unescaped(markdown):
    return re.sub(r"\\([\\`*_{}\[\]<>|#~$&])", r"\1", markdown)


def test_console_and_markdown_show_every_cell_and_line(comparison):
    console, markdown = console_text(comparison), unescaped(comparison.to_markdown())
    (candidate,) = comparison.candidates
    lines = [candidate.verdict.headline, *candidate.verdict.details, *footnotes(comparison)]
    tables = [table(comparison) for table in (gate_table, result_table, arm_table, difference_table)]
    for line in lines:
        assert line in console
        assert line in markdown
    for table in tables:
        assert table.rows
        for row in table.rows:
            assert "| " + " | ".join(row) + " |" in markdown
            pattern = r"\s+".join(re.escape(cell) for cell in row if cell)
            assert re.search(pattern, console), row


def test_the_figures_are_those_of_the_document(comparison):
    console = console_text(comparison)
    result = comparison.candidates[0].metrics[0].estimate
    assert f"step time −{100 * (1 - result.value):.1f} %" in console
    assert f"a speed-up of {1 / result.value:.3f} ({1 / result.high:.3f} to {1 / result.low:.3f})" in console
    gate = comparison.gates[0]
    assert re.search(rf"step_time<=1.05, amp\s+passed\s+{gate.value:.4g}\s+{gate.low:.4g}\s+{gate.high:.4g}", console)


def test_json_is_the_document(comparison):
    assert Comparison.from_json(comparison.to_json()) == comparison


def test_the_verdict_comes_first(comparison):
    headline = comparison.candidates[0].verdict.headline
    assert console_text(comparison).startswith(f"Verdict  {headline}")
    title, result, first, *_ = unescaped(comparison.to_markdown()).split("\n\n")
    assert (title, first) == ("# Comparison with fp32: amp faster", f"**{headline}**")
    assert result.startswith("**")


def test_a_narrow_console_loses_no_figure(comparison):
    wide, narrow = (console_text(comparison, width=width) for width in (400, 60))
    # Where the columns are parted, titles of rows stand in each part.
    assert not Counter(re.findall(r"[^\s─]", wide)) - Counter(re.findall(r"[^\s─]", narrow))
    assert max(map(len, narrow.splitlines())) <= 60


def test_hostile_names_are_shown_and_do_nothing(tmp_path):
    hostile = compare_arms(make(tmp_path, HOSTILE, train__precision=HOSTILE))
    console, markdown = console_text(hostile), hostile.to_markdown()
    for text in (console, markdown):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert r"\x1b" in text
    assert "[red]a" in console
    assert not re.search(r"(?<!\\)<script", markdown)
    assert not re.search(r"(?<!\\)&lt;", markdown)
    rows = [line for line in markdown.splitlines() if line.startswith("| step time")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in rows] == [7, 11]
    assert Comparison.from_json(hostile.to_json()) == hostile


def test_a_refusal_shows_its_rows_and_what_to_do(tmp_path):
    with pytest.raises(UnfairError) as refusal:
        compare_arms(make(tmp_path, train__batch_size=64, version__torch=HOSTILE))
    document = refusal.value.refusal
    text = console_text(document, ["Block 2: failed."])
    markdown = unescaped(document.to_markdown(["Block 2: failed."]))
    assert "- Block 2: failed." in markdown
    assert "| train.batch_size | 32 | 64 |" in markdown
    assert "--allow train.batch_size" in markdown
    assert "\x1b" not in markdown
    assert "Block 2: failed." in text
    assert re.search(r"train\.batch_size\s+32\s+64", text)
    assert "--treatment train.batch_size" in text
    assert "--allow train.batch_size" in text
    assert "\x1b" not in text


def test_what_is_unknown_is_a_dash_and_never_a_number(tmp_path):
    single = compare_arms({name: runs[:1] for name, runs in make(tmp_path).items()})
    (row,) = (row for row in result_table(single).rows if row[0].startswith("step time"))
    assert row == ("step time, amp", "−6.0 %", "–", "1", "−6.0 %", "–")
    rows = arm_table(single).rows
    row = rows[[row[0] for row in rows].index("  amp")]
    assert row[3] == "–"  # SD
    for text in (console_text(single), single.to_markdown()):
        assert not re.search(r"\b(nan|None|inf)\b", text)


def test_at_80_columns_no_figure_and_no_word_is_broken(comparison):
    text = console_text(comparison, width=80)
    assert max(map(len, text.splitlines())) <= 80
    rows = arm_table(comparison).rows
    for row in rows:
        if row[1]:
            assert re.search(r"^ " + r"\s+".join(map(re.escape, row)) + r"\s*$", text, re.MULTILINE), row
    for word in ("Hodges–Lehmann", "throughput", "(samples/s)"):
        assert word in text
    step_time = rows[: 1 + len(comparison.arms)]
    assert step_time[0][0] == "step time (ms)"
    assert step_time[1][:4] == ("  fp32", "6", "100.8", "2.3")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_figures_of_any_size_leave_words_and_units_whole(tmp_path, width):
    times = {"fp32": (123456.0, 103000.0, 99000.0), "amp": (0.94, 0.959, 0.937)}
    arms = {
        name: [
            write_run(tmp_path / name / str(n), step_ms=ms, epoch_s=ms, train__seed=n) for n, ms in enumerate(of_arm)
        ]
        for name, of_arm in times.items()
    }
    text = console_text(compare_arms(arms), width=width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("throughput", "Hodges–Lehmann", "(samples/s)"):
        assert word in text
    tables = text[text.index("Differences") : text.index("Spread of")]
    assert not re.search(r"^ *(%|pt)\b", tables, re.MULTILINE)
    assert "0.00094" in text, "what is small beside the others is not shown as 0.0"


def test_what_differs_within_an_arm_is_not_offered_as_the_treatment(tmp_path):
    made = make(tmp_path / "a")
    made["amp"][:1] = make(tmp_path / "b", code__revision="c2")["amp"][:1]
    with pytest.raises(UnfairError) as refusal:
        compare_arms(made)
    text = " ".join(console_text(refusal.value.refusal).split())
    assert (
        "code.revision differs between runs of the same arm. If this does not matter, add --allow code.revision."
        in text
    )
    assert "--treatment" not in text
