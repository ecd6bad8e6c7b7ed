"""Score answers to questions about traces and runs with known causes (`benchmarks.agents.cases`).

    python -m benchmarks.agents.evaluation                      # the findings and verdicts of lightning_perf
    python -m benchmarks.agents.evaluation --client "python -m benchmarks.agents.client"
    python -m benchmarks.agents.evaluation --list

The published traces are read from LIGHTNING_PERF_CORPUS. Without it, their cases are left out.

A client is a command. For each case it gets one JSON object on standard input:

    {"question": "...", "kind": "findings", "folder": "/tmp/x/case-01", "choices": {"input-bound": "...", ...}}
    {"question": "...", "kind": "comparison", "folder": "/tmp/x/case-02", "arms": {"old": ..., "new": ...},
     "treatment": ["precision"], "choices": ["faster", "slower", ...]}

and prints one JSON object: {"findings": ["input-bound"]} or {"outcome": "faster"}.

A case is passed if every expected finding is in the answer and no forbidden one. Other findings count neither way,
because the facts of the case do not decide them. The result goes to results/agent_evaluation.md. The exit code is 1 if
a case failed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning_perf
from benchmarks.agents.cases import CASES, OUTCOMES, Case
from benchmarks.options import make_parser, markdown_table

RESULT = Path(__file__).parents[1] / "results" / "agent_evaluation.md"
CLIENT_TIMEOUT_S = 600.0

FINDINGS_QUESTION = (
    "The folder holds a recording of a training or an inference. Which of these causes of lost time does it show? "
    "Answer with their IDs. Answer with an empty list if it shows none."
)
COMPARISON_QUESTION = (
    "The folders hold repeated runs of two settings, old and new, that should differ only in the treatment. Is the new "
    "setting faster per step? Answer with one of the outcomes."
)


@dataclass(frozen=True)
class Scored:
    """A case with its answer.

    Attributes:
        case: The case.
        answer: The findings or the outcome.
        missing: Expected ones that are not in the answer.
        wrong: Forbidden ones that are; of a comparison, a wrong outcome.
        problem: Why no answer could be read; empty if there was one.
    """

    case: Case
    answer: tuple[str, ...]
    missing: tuple[str, ...]
    wrong: tuple[str, ...]
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether every expected finding is in the answer and no forbidden one."""
        return not (self.missing or self.wrong or self.problem)


def make_question(case: Case, folder: Path) -> dict[str, Any]:
    """Return the question about the files of a case."""
    if case.kind == "comparison":
        return {
            "question": COMPARISON_QUESTION,
            "kind": case.kind,
            "folder": str(folder),
            "arms": {name: str(folder / name) for name in ("old", "new")},
            "treatment": list(case.treatment),
            "choices": list(OUTCOMES),
        }
    from lightning_perf.findings.pages import read_symptoms
    from lightning_perf.findings.whole_run import RULE_IDS

    choices = {rule: symptom for rule, symptom in read_symptoms().items() if rule in RULE_IDS}
    return {"question": FINDINGS_QUESTION, "kind": case.kind, "folder": str(folder), "choices": choices}


def answer_with_rules(question: dict[str, Any]) -> dict[str, Any]:
    """Answer a question with the findings and verdicts of lightning_perf."""
    if question["kind"] == "findings":
        report = lightning_perf.analyze(question["folder"])
        return {"findings": [found.kind for found in (*report.findings, *report.fit_findings)]}
    from lightning_perf.compare.judge import judge_arms
    from lightning_perf.compare.records.record import find_records
    from lightning_perf.compare.verdicts.comparison import Comparison, Unfair
    from lightning_perf.compare.verdicts.gates import Settings

    runs = {name: find_records(folder) for name, folder in question["arms"].items()}
    result = judge_arms(runs, Settings(treatment=tuple(question["treatment"])), store=False)
    if isinstance(result, Comparison):
        return {"outcome": result.candidates[0].verdict.kind.value}
    return {"outcome": "refused" if isinstance(result, Unfair) else "invalid_runs"}


def answer_with_client(command: str) -> Callable[[dict[str, Any]], Any]:
    """Return a function that asks a client.

    Args:
        command: The command of the client.
    """

    def ask(question: dict[str, Any]) -> Any:
        done = subprocess.run(
            shlex.split(command),
            input=json.dumps(question) + "\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=CLIENT_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise ValueError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)

    return ask


def score(case: Case, answer: Any) -> Scored:
    """Score an answer.

    Args:
        case: The case.
        answer: The decoded JSON of the answer.
    """
    key = "outcome" if case.kind == "comparison" else "findings"
    given = answer.get(key) if isinstance(answer, dict) else None
    if case.kind == "comparison":
        if not isinstance(given, str):
            return Scored(case, (), (), (), 'no member "outcome" with a text')
        return Scored(case, (given,), (), () if given in case.expected else (given,))
    if not isinstance(given, list) or not all(isinstance(rule, str) for rule in given):
        return Scored(case, (), (), (), 'no member "findings" with a list of texts')
    missing = tuple(group for group in case.expected if not set(group.split("|")) & set(given))
    return Scored(case, tuple(given), missing, tuple(rule for rule in given if rule in case.forbidden))


def run_case(case: Case, corpus: Path, folder: Path, ask: Callable[[dict[str, Any]], Any]) -> Scored:
    """Put the files of a case into a folder, ask about them, and score the answer."""
    folder.mkdir(parents=True)
    case.make(folder, corpus)
    try:
        return score(case, ask(make_question(case, folder)))
    except (ValueError, OSError, subprocess.TimeoutExpired) as error:
        return Scored(case, (), (), (), f"{type(error).__name__}: {error}")


def summarize(scored: Sequence[Scored]) -> list[str]:
    """Return the figures of a set of cases, one line each."""
    groups = [(row.case.expected, row.missing) for row in scored if row.case.kind == "findings"]
    expected, missing = (sum(len(group[part]) for group in groups) for part in (0, 1))
    abstentions = [row for row in scored if row.case.kind == "findings" and not row.case.expected]
    free = sum(row.passed for row in abstentions)
    forbidden = sum(len(row.case.forbidden) for row in scored if row.case.kind == "findings")
    wrong = sum(len(row.wrong) for row in scored if row.case.kind == "findings")
    compared = [row for row in scored if row.case.kind == "comparison"]
    others = sum(len(_others(row)) for row in scored)
    return [
        f"Cases passed: {sum(row.passed for row in scored)} of {len(scored)}",
        f"Expected findings found: {expected - missing} of {expected}",
        f"Forbidden findings reported: {wrong} of {forbidden}",
        f"Cases with nothing to find, without a forbidden finding: {free} of {len(abstentions)}",
        f"Outcomes of comparisons that are right: {sum(row.passed for row in compared)} of {len(compared)}",
        f"Other findings, which the facts of the case do not decide: {others}",
        f"Answers that could not be read: {sum(bool(row.problem) for row in scored)}",
    ]


def _others(row: Scored) -> list[str]:
    known = {rule for group in row.case.expected for rule in group.split("|")} | set(row.case.forbidden)
    return [rule for rule in row.answer if rule not in known] if row.case.kind == "findings" else []


_METHOD = (
    "A case is passed if every expected finding is in the answer and no forbidden one. The reasons are facts of the "
    "raw events of a published trace, or of the times that were written into a planted one. The rules were "
    "developed on the published traces, among others, so their own result is a check against regressions and a "
    "yardstick for clients, not a measure of new trainings."
)


def to_markdown(scored: Sequence[Scored], who: str) -> str:
    """Return the result as Markdown."""
    rows = []
    for row in scored:
        expected = ", ".join(rule.replace("|", " or ") for rule in row.case.expected) or "none"
        answer, passed = ", ".join(row.answer) or "none", "yes" if row.passed else "**no**"
        cells = (row.case.name, passed, expected, answer, ", ".join(_faults(row)), row.case.reason)
        rows.append([cell.replace("|", "\\|") for cell in cells])
    lines = [
        "# Findings and verdicts on traces with known causes",
        "",
        f"lightning_perf {lightning_perf.__version__}, written by `python -m benchmarks.agents.evaluation`.",
        f"Answers of {who}. {_METHOD}",
        "",
        *(f"- {line}" for line in summarize(scored)),
        "",
        markdown_table(("case", "passed", "expected", "answer", "wrong or missing", "reason"), rows),
    ]
    return "\n".join(lines) + "\n"


def _faults(row: Scored) -> list[str]:
    return [*row.wrong, *(f"no {rule}" for rule in row.missing), *filter(None, [row.problem])]


def evaluate(cases: Iterable[Case], corpus: Path, ask: Callable[[dict[str, Any]], Any]) -> list[Scored]:
    """Score all cases, each in a folder with a name that gives no hint."""
    scored = []
    with tempfile.TemporaryDirectory(prefix="lightning_perf-") as folder:
        for number, case in enumerate(cases):
            row = run_case(case, corpus, Path(folder) / f"case-{number:02d}", ask)
            scored.append(row)
            print(f"{'passed' if row.passed else 'FAILED'}  {case.name}  {', '.join(_faults(row))}", flush=True)
    return scored


def main() -> int:
    """Score the cases, print the figures, and write the result."""
    parser = make_parser(__doc__)
    parser.add_argument("--client", metavar="COMMAND", help="ask this command (default: the findings themselves)")
    parser.add_argument("--only", metavar="TEXT", default="", help="only cases with this text in their name")
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE", help="file of the result")
    parser.add_argument("--list", action="store_true", help="list the cases and exit")
    options = parser.parse_args()
    corpus = os.environ.get("LIGHTNING_PERF_CORPUS")
    chosen = [case for case in CASES if options.only in case.name and (corpus or not case.published)]
    if options.list:
        print("\n".join(f"{case.name}: {', '.join(case.expected) or 'none'}" for case in chosen))
        return 0
    ask = answer_with_client(options.client) if options.client else answer_with_rules
    scored = evaluate(chosen, Path(corpus or ""), ask)
    print("\n".join(summarize(scored)))
    if not options.only:
        who = f"`{options.client}`" if options.client else "the rules and verdicts themselves"
        options.out.write_text(to_markdown(scored, who), encoding="utf-8")
    return 0 if all(row.passed for row in scored) else 1


if __name__ == "__main__":
    sys.exit(main())
