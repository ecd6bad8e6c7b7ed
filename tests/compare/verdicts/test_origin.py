"""A comparison says where it is from: title, result, hardware, times, commits, commands, the tool's version."""

import re

import pytest
from msgspec.structs import replace

import lightning_perf
from lightning_perf.compare import METRICS, Settings, VerdictKind, compare_runs
from lightning_perf.compare.engines.block import Device
from lightning_perf.compare.engines.local import LocalEngine
from lightning_perf.compare.study.definition import StudyArm
from lightning_perf.compare.study.run import run_study
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.gates import parse_gate
from lightning_perf.errors import CompareError
from tests.compare.support import AMP_MS, BASE_MS, fake_arm, fake_study, write_arms


@pytest.fixture
def arms(tmp_path):
    facts = {"device__name": "EPYC", "device__threads": 2, "host__name": "node1"}
    made = write_arms(tmp_path, candidate=[ms * 0.9 for ms in AMP_MS], **facts, train__precision="16-mixed")
    base = write_arms(tmp_path / "base", BASE_MS, AMP_MS)["fp32"]
    return {"fp32": [with_facts(run, facts) for run in base], "amp": made["amp"]}


def with_facts(run, facts):
    return replace(run, facts={**run.facts, **{k.replace("__", "."): v for k, v in facts.items()}})


@pytest.mark.parametrize(
    ("gates", "result"),
    [
        ((), None),
        (("step_time<=1.05",), "**Passed: the gate passed.**"),
        (("step_time<=1.05", "accuracy>=-0.01"), "**Passed: all 2 gates passed.**"),
        (("step_time<=1.05", "step_time<=0.5"), "**Failed: 1 of 2 gates failed.**"),
        (("host_memory<=1", "step_time<=0.85"), "**Inconclusive: 1 of 2 gates could not be decided.**"),
    ],
)
def test_markdown_begins_with_a_title_and_the_result_of_all_gates(arms, gates, result):
    comparison = compare_arms(arms, Settings(gates=tuple(map(parse_gate, gates))))
    lines = [line for line in comparison.to_markdown().splitlines() if line]
    assert lines[0] == "# Comparison with fp32: amp faster"
    headline = f"**Verdict** {comparison.candidates[0].verdict.headline}"
    assert lines[1:3] == [result, headline] if result else lines[1] == headline


def test_hardware_times_and_version_are_in_markdown_and_json(arms):
    comparison = compare_arms(arms)
    text = comparison.to_markdown()
    assert "- Hardware: EPYC, 2 threads (node1)" in text
    assert "- Runs started: 1970-01-01 00:00 to 1970-01-01 00:00 UTC" in text
    assert f"- Compared with lightning-perf {lightning_perf.__version__}" in text
    assert "| fp32 | 6 | none | 0 % (0 % to 45.9 %) | – | c1 | – |" in text
    assert comparison.machines == ("node1",)
    assert comparison.tool_version == lightning_perf.__version__
    assert [run.started_unix_s for run in comparison.runs] == sorted(
        2.0 * n + arm for n in range(1, 7) for arm in (0, 1)
    )
    assert {run.revision for run in comparison.runs} == {"c1"}
    assert Comparison.from_json(comparison.to_json()) == comparison


def test_a_study_adds_the_commands_without_secrets(tmp_path):
    secret = StudyArm("amp", fake_arm("amp", "--step-ms=8").command, {"HF_TOKEN": "hf_123", "DEPTH": "a b"})
    study = fake_study(arms=(fake_arm("fp32"), secret), blocks=1, treatment=())
    run_study(study, tmp_path, LocalEngine([Device("test-origin", "")]), lambda line: None)
    comparison = compare_runs(tmp_path)
    assert re.fullmatch(r"\S+ \S*fake_run\.py", comparison.arms[0].command)
    assert re.fullmatch(r"HF_TOKEN=… DEPTH='a b' \S+ \S*fake_run\.py --step-ms=8", comparison.arms[1].command)
    assert "hf_123" not in comparison.to_json() + comparison.to_markdown()
    assert "DEPTH='a b'" in comparison.to_markdown()


def test_a_result_is_found_by_its_names(arms):
    comparison = compare_arms(arms)
    candidate = comparison.candidate("amp")
    assert candidate.verdict.kind is VerdictKind.FASTER
    assert candidate.metric("step_time").estimate.value < 0.9
    assert METRICS["step_time"].unit == "ms"
    with pytest.raises(CompareError, match=r'has no candidate "fp32"\. Choose from: amp\.'):
        comparison.candidate("fp32")
    with pytest.raises(CompareError, match=r'amp has no metric "speed"\. Choose from: step_time, train_time, '):
        candidate.metric("speed")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"goal": "0.9"}, r"Settings\(goal='0.9'\): must be a number from 0 to 1"),
        ({"goal": 90}, "from 0 to 1"),
        ({"collapse_below": True}, "from 0 to 1"),
        ({"collapse_below": float("nan")}, "from 0 to 1"),
        ({"accuracy": 1}, r"Settings\(accuracy=1\): must be the name of a logged metric, or None"),
        ({"quality": ""}, "must be the name of a logged metric"),
        ({"margin": "1 %"}, "from 0 to 1"),
        ({"confidence": 1}, "above 0 and below 1"),
        ({"allow": ["code"]}, "must be a tuple of str"),
        ({"treatment": "precision"}, r'must be a tuple of str, e\.g\. \("precision",\)\.'),
        ({"gates": ("step_time<=1",)}, r'must be a tuple of Gate, e\.g\. \(parse_gate\("step_time<=1\.05"\),\)\.'),
    ],
)
def test_settings_of_a_wrong_type_or_range_are_refused(values, message):
    with pytest.raises(CompareError, match=message):
        Settings(**values)
    assert Settings(goal=1, collapse_below=0.5, accuracy="acc").goal == 1
