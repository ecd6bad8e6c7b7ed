"""The evaluation of findings and of clients: its cases, its scores, and the passed cases of the rules themselves."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.cases import CASES, OUTCOMES, Case
from benchmarks.agents.evaluation import (
    answer_with_client,
    answer_with_rules,
    make_question,
    run_case,
    score,
    summarize,
    to_markdown,
)
from lightning_perf.findings.pages import read_symptoms

MADE = [case for case in CASES if not case.published]
WAITING = next(case for case in CASES if case.name == "planted: a loader without workers")
BUSY = next(case for case in CASES if case.name == "planted: a busy device")
FASTER = next(case for case in CASES if case.expected == ("faster",))


def test_there_are_cases_of_every_kind_with_reasons() -> None:
    assert len(CASES) >= 30
    assert sum(case.published for case in CASES) >= 20
    assert sum(not case.expected for case in CASES) >= 10
    for case in CASES:
        assert case.reason.endswith(".")
        expected = {rule for group in case.expected for rule in group.split("|")}
        known = set(OUTCOMES) if case.kind == "comparison" else set(read_symptoms())
        assert expected | set(case.forbidden) <= known, case.name
        assert not expected & set(case.forbidden), case.name
        assert case.expected or case.forbidden, case.name


@pytest.mark.parametrize("case", MADE, ids=lambda case: case.name)
def test_the_rules_pass_made_cases(case: Case, tmp_path: Path) -> None:
    row = run_case(case, tmp_path, tmp_path / "case", answer_with_rules)
    assert row.passed, (row.answer, row.missing, row.wrong, row.problem)


@pytest.mark.corpus
def test_the_rules_pass_published_cases(corpus: Path, tmp_path: Path) -> None:
    for number, case in enumerate(case for case in CASES if case.published):
        row = run_case(case, corpus, tmp_path / str(number), answer_with_rules)
        assert row.passed, (case.name, row.answer, row.missing, row.wrong, row.problem)


@pytest.mark.parametrize(
    ("case", "answer", "missing", "wrong"),
    [
        (WAITING, {"findings": ["input-bound"]}, (), ()),
        (WAITING, {"findings": ["memory-spare", "input-bound"]}, (), ()),
        (WAITING, {"findings": []}, ("input-bound",), ()),
        (WAITING, {"findings": ["input-bound", "tf32-off"]}, (), ("tf32-off",)),
        (BUSY, {"findings": []}, (), ()),
        (BUSY, {"findings": ["launch-bound"]}, (), ("launch-bound",)),
        (FASTER, {"outcome": "faster"}, (), ()),
        (FASTER, {"outcome": "inconclusive"}, (), ("inconclusive",)),
    ],
)
def test_scores(case: Case, answer: Any, missing: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    row = score(case, answer)
    assert (row.missing, row.wrong, row.problem) == (missing, wrong, "")
    assert row.passed == (not missing and not wrong)


def test_one_of_several_findings_is_enough() -> None:
    case = next(case for case in CASES if "launch-bound|small-kernels" in case.expected)
    assert score(case, {"findings": ["small-kernels"]}).passed
    assert score(case, {"findings": []}).missing == ("launch-bound|small-kernels",)


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"findings": "input-bound"}, {"findings": [1]}, {"outcome": "faster"}]
)
def test_an_answer_in_another_form_fails(answer: Any) -> None:
    assert "no member" in score(WAITING, answer).problem
    assert not score(BUSY, answer).passed


def test_a_client_gets_the_question_and_its_answer_is_scored(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "known = json.load(sys.stdin)['choices']\n"
        "print(json.dumps({'findings': sorted({'input-bound'} & {*known})}))"
    )
    client = answer_with_client(shlex.join([sys.executable, "-c", code]))
    row = run_case(WAITING, tmp_path, tmp_path / "a", client)
    assert (row.passed, row.answer) == (True, ("input-bound",))
    wrong = run_case(BUSY, tmp_path, tmp_path / "b", client)
    assert wrong.wrong == ("input-bound",)
    failing = run_case(BUSY, tmp_path, tmp_path / "c", answer_with_client(f"{sys.executable} -c 'raise SystemExit(3)'"))
    assert "exit code 3" in failing.problem
    silent = run_case(BUSY, tmp_path, tmp_path / "d", answer_with_client(f"{sys.executable} -c pass"))
    assert silent.problem
    figures = "\n".join(summarize([row, wrong, failing, silent]))
    assert "Cases passed: 1 of 4" in figures
    assert "Expected findings found: 1 of 1" in figures
    assert "Answers that could not be read: 2" in figures
    assert "| planted: a busy device | **no** | none | input-bound | input-bound |" in to_markdown([wrong], "a client")


def test_questions_give_no_hint(tmp_path: Path) -> None:
    for number, case in enumerate(MADE):
        folder = tmp_path / f"case-{number}"
        question = make_question(case, folder)
        assert json.loads(json.dumps(question)) == question
        assert case.name not in json.dumps(question)
