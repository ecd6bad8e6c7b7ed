"""The commands agree: one spelling per option, lists with commas, helpful errors, documented exit codes."""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf import ExitCode
from lightning_perf.cli import _GROUPS, _parser, main
from lightning_perf.commands.infer import to_points
from lightning_perf.run_files.numerics.precision import (
    Fp32Arithmetic,
    PrecisionMistake,
    PrecisionSetting,
    RunPrecision,
    write_precision,
)
from recipes.signlang import cli as signlang
from tests.findings.recordings import training
from tests.support.absent_packages import without
from tests.support.trace_builder import TraceBuilder

ROOT = Path(__file__).parents[1]
COMMANDS = tuple(name for commands in _GROUPS.values() for name in commands)
WITH_DOCUMENT = ("analyze", "diff", "tune", "compare", "study", "infer")
RECIPE_COMMANDS = ("train", "compare", "infer", "predict")


def help_of(command: str, capsys: pytest.CaptureFixture[str], start: object = main) -> str:
    with pytest.raises(SystemExit) as stopped:
        start([command, "--help"])  # type: ignore[operator]
    assert stopped.value.code == 0
    return capsys.readouterr().out


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    (subparsers,) = (a for a in _parser("")._actions if isinstance(a, argparse._SubParsersAction))
    yield from subparsers.choices.items()


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == ExitCode.USAGE
    return capsys.readouterr().err


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of steps that mostly wait for their input."""
    (tmp_path / "runs" / "old").mkdir(parents=True)
    builder = TraceBuilder()
    for step in range(1, 4):
        start = 1000 * step
        builder.step(step, start, 1000)
        builder.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, 900)
        builder.op("aten::mm", start + 900, 90)
    return builder.write(tmp_path / "runs" / "old" / "rank0.pt.trace.json.gz")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_and_has_a_sentence_an_example_and_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(command, capsys)
    assert max(map(len, text.splitlines())) <= 86  # one example is a long path
    usage, sentence, *_ = text.split("\n\n")
    assert usage.startswith(f"usage: lightning-perf {command} ")
    assert "\n" not in usage
    assert sentence.rstrip().endswith(".")
    assert f"examples:\n  lightning-perf {command}" in text
    assert "exit codes:\n" in text
    assert "  130  " in text


def test_the_list_shows_each_command_once_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^(?:(\w+):|  ([\w-]+)  +\w)", capsys.readouterr().out.partition("--version")[2], re.MULTILINE)
    assert [group for group, _ in listed if group] == ["look", "change", "verify", "deploy", "share"]
    assert [name for _, name in listed if name] == list(COMMANDS)
    assert len(COMMANDS) <= 15


@pytest.mark.parametrize("command", RECIPE_COMMANDS)
def test_help_of_the_recipe(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(command, capsys, signlang.main)
    assert "usage: python -m recipes.signlang" in text
    assert "examples:\n  python -m recipes.signlang" in text
    assert "exit codes:\n" in text


def test_all_help_works_without_torch() -> None:
    loop = "\n".join(
        ["import contextlib, io", *(f"with contextlib.suppress(SystemExit): main(['{c}', '--help'])" for c in COMMANDS)]
    )
    code = without({"torch", "scipy", "numpy", "rich"}, f"from lightning_perf.cli import main\n{loop}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(COMMANDS)


def test_every_command_with_a_document_has_the_same_outputs() -> None:
    found = dict(parsers())
    assert set(found) >= set(WITH_DOCUMENT)
    for name in WITH_DOCUMENT:
        options = found[name]._option_string_actions
        assert {"--json", "--markdown", "-q", "--quiet"} <= set(options), name
        assert options["--json"].nargs == 0
        assert options["--markdown"].metavar == "FILE"


def test_one_spelling_and_one_short_form_per_option() -> None:
    short: dict[str, set[str]] = {}
    for _, parser in parsers():
        for action in parser._actions:
            for option in action.option_strings:
                if not option.startswith("--"):
                    short.setdefault(option, set()).add(action.option_strings[-1])
    assert {name: sorted(longs) for name, longs in sorted(short.items())} == {
        "-b": ["--batch-sizes"],
        "-d": ["--device"],
        "-h": ["--help"],
        "-m": ["--minutes", "--module"],  # `run -m` as in `python -m`
        "-n": ["--top"],
        "-o": ["--out"],
        "-q": ["--quiet"],
        "-t": ["--threads"],
    }


def test_no_option_swallows_the_argument_after_it() -> None:
    for name, parser in parsers():
        greedy = [
            action.option_strings for action in parser._actions if action.option_strings and action.nargs in ("+", "*")
        ]
        assert not greedy, name


def parse(*arguments: str) -> argparse.Namespace:
    return _parser(arguments[0]).parse_args(arguments)


def test_a_list_takes_commas_and_repetitions_before_the_argument() -> None:
    options = parse("tune", "--levers", "precision,channels-last", "--levers", "compile", "pkg:make")
    assert (options.levers, options.training) == (("precision", "channels-last", "compile"), ["pkg:make"])
    options = parse("infer", "-b", "1,8", "-b", "64", "--variants", "compile", "-t", "2", "pkg:make")
    assert (options.batch_sizes, options.variants, options.threads) == ((1, 8, 64), ("compile",), (2,))
    options = parse("infer", "pkg:make")
    assert (options.batch_sizes, options.variants, options.threads) == ((1, 32), None, (1,))
    assert parse("compare", "a", "b", "--gate", "step_time<=1,accuracy>=-0.01").gate == (
        "step_time<=1",
        "accuracy>=-0.01",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["analyse", "x"], "unknown value 'analyse'. Did you mean analyze? Choose from demo, run, top, analyze, view"),
        (["compare", "a", "b", "--plots", "x"], "unknown option '--plots'. Did you mean --plot?"),
        (["infer", "--batch-size", "8"], "unknown option '--batch-size'. Did you mean --batch-sizes?"),
        (["infer", "x", "--variant", "compile"], "Did you mean --variants?"),
        (["infer", "--variants", "a", "b", "c"], "unexpected argument 'c'. Separate several values"),
        (["infer", "x", "--batch-sizes", "1,,2"], "'1,,2' has an empty value"),
        (["infer", "x", "--batch-sizes", "1,0"], "'0' is not a whole number of 1 or more"),
        (["view", "x", "--port", "70000"], "usage: lightning-perf view"),
        (["infer", "x", "--max-accuracy-drop", "1"], "'1' is not a share"),
        (["analyze", "x", "--engine", "spark"], "unknown value 'spark'. Choose from local, ray."),
        (["run", "--precision", "bf16", "x"], "unknown value 'bf16'. Did you mean bf16-mixed? Choose from 16-mixed"),
    ],
)
def test_wrong_usage_names_the_value_and_the_fix(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_of(arguments, capsys)
    assert said in message
    assert "--help' for all options." in message


@pytest.mark.parametrize(
    ("command", "names"), [("tune", ("channels-last", "precision")), ("infer", ("eager", "prune-50"))]
)
def test_list_prints_the_names_and_needs_no_argument(
    command: str, names: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--list"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out.split()
    assert set(names) <= set(printed)


def test_list_without_torch_names_the_extra() -> None:
    command = [sys.executable, "-c", without({"torch"}), "tune", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("lightning-perf: torch is not installed")


def test_device_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lightning_perf.inference.model import choose_device

    assert parse("infer", "x").device == "auto"
    for there, device in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto") == device
        assert choose_device("cuda:1") == "cuda:1"


def test_a_loss_of_accuracy_is_a_share_on_the_command_line_and_points_in_the_document() -> None:
    assert to_points(parse("infer", "x", "--max-accuracy-drop", "0.015").max_accuracy_drop) == 1.5
    assert to_points(parse("infer", "x", "--max-accuracy-drop", "0").max_accuracy_drop) == 0
    assert to_points(None) is None


def test_analyze_without_a_path_takes_the_newest_run_below(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tmp_path / "runs" / "new" / trace.name
    hidden = tmp_path / ".hidden" / trace.name
    for path in (newer, hidden):
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress(gzip.decompress(trace.read_bytes()).replace(b"aten::mm", b"aten::bmm")))
    os.utime(trace, (1000, 1000))
    os.utime(newer, (2000, 2000))
    monkeypatch.chdir(tmp_path)
    assert main(["analyze"]) == 0
    streams = capsys.readouterr()
    assert "aten::bmm" in streams.out
    assert f"the newest run below the current folder: {Path('runs/new')}" in streams.err
    assert main(["analyze", "-q"]) == 0
    assert capsys.readouterr().err == ""
    os.utime(trace, (3000, 3000))
    assert main(["analyze", "-q", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"] == [str(trace)]


def test_analyze_without_a_path_and_without_a_run_says_how_to_record_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["analyze"]) == ExitCode.USAGE
    assert "no folder below holds a trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "code"),
    [("high", 1), ("moderate", 1), ("low", 1), ("input-bound", 1), ("periodic-steps", 0), ("launch-bound,high", 1)],
)
def test_fail_on_a_rule_or_a_severity(trace: Path, names: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = (finding for finding in lightning_perf.analyze(trace).findings if finding.kind == "input-bound")
    assert found.severity == "high"
    assert main(["analyze", str(trace), "--fail-on", names]) == code
    streams = capsys.readouterr()
    assert streams.out.startswith("Where")
    assert ("--fail-on" in streams.err) == bool(code)
    assert not code or "input-bound (high)" in streams.err


@pytest.mark.parametrize(("names", "code"), [("half-loss", 1), ("half-weights", 0)])
def test_fail_on_a_mistake_in_mixed_precision(tmp_path: Path, names: str, code: int) -> None:
    setting = PrecisionSetting("16-mixed", None, False, False, (), Fp32Arithmetic(False, False, True))
    mistake = PrecisionMistake("half-loss", "high", "A loss is in FP16", (), "Call .float().")
    write_precision(tmp_path, RunPrecision(setting, mistakes=(mistake,)))
    training().write(tmp_path / "rank0.1000000001.pt.trace.json.gz")
    assert main(["analyze", str(tmp_path), "--fail-on", names]) == code


def test_fail_on_an_unknown_rule_lists_the_rules(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(trace), "--fail-on", "slow"]) == ExitCode.USAGE
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "--fail-on: unknown rule or severity 'slow'. Choose from high, moderate, low; activations, " in streams.err


def test_markdown_goes_into_a_new_folder_or_is_an_error(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["analyze", str(trace)], ["diff", str(trace), str(trace)]):
        assert main([*arguments, "--markdown", str(tmp_path / "new" / f"{arguments[0]}.md")]) == 0
        assert main([*arguments, "--markdown", str(tmp_path)]) == ExitCode.USAGE
        assert "cannot be written" in capsys.readouterr().err


def test_the_docs_list_every_exit_code() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    listed = {(int(code), name) for code, name in re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", page, re.MULTILINE)}
    assert listed == {(code.value, code.name) for code in ExitCode}
