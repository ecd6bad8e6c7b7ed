import json
import subprocess
import sys

import pytest

from lightning_perf.cli import main
from lightning_perf.compare.study.definition import Study, StudyArm
from lightning_perf.lazy_imports import install_command
from lightning_perf.run_files.run_record import Place
from tests.compare.support import write_run
from tests.support.absent_packages import without
from tests.support.schemas import load_document

BASE_MS = (100.0, 103.0, 99.0, 101.0, 104.0, 98.0)
FASTER_MS = tuple(0.94 * ms for ms in BASE_MS)
AMP_MS = (94.0, 95.9, 93.7, 94.5, 97.1, 92.0)
NOISY_MS = (90.0, 110.0, 97.0, 106.0, 94.0, 103.0)


@pytest.fixture
def folders(tmp_path):
    """Folders of runs: ``fp32`` and others with these step times."""

    def make(candidate=FASTER_MS, **changes):
        for name, times, facts in (("fp32", BASE_MS, {}), ("amp", candidate, changes)):
            for n, ms in enumerate(times):
                accuracies = (0.7, 0.9 + 0.0005 * ((n + (name == "amp")) % 3))
                facts = {"step_ms": ms, "train__seed": n, "accuracies": accuracies} | facts
                write_run(tmp_path / name / f"run{n}", started=2.0 * n, **facts | {"train__seed": n, "step_ms": ms})
        return str(tmp_path / "fp32"), str(tmp_path / "amp")

    return make


def run(*arguments, refused=()):
    command = [sys.executable, "-c", without(refused), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_verdict_is_code_0_and_states_both_figures(folders, capsys):
    assert main(["compare", *folders()]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).startswith("Verdict amp is faster than fp32: step time −6.0 % (95 % interval ")
    assert "a speed-up of 1.064" in " ".join(out.split())


@pytest.mark.parametrize(
    ("candidate", "gates", "code"),
    [
        (FASTER_MS, ["step_time<=1.05", "accuracy>=-0.01"], 0),
        (BASE_MS, ["step_time<=1.1"], 0),
        (FASTER_MS, ["step_time<=0.9", "accuracy>=-0.01"], 1),
        (FASTER_MS, ["step_time<=1.05", "step_time<=0.935", "accuracy>=0.5"], 1),
        (NOISY_MS, ["step_time<=1"], 4),
        (FASTER_MS, ["step_time<=1.05", "time_to_accuracy<=1"], 4),
        (NOISY_MS, [], 0),
    ],
)
def test_gates_decide_the_exit_code(folders, candidate, gates, code, capsys):
    assert main(["compare", *folders(candidate), *(f"--gate={gate}" for gate in gates), "--json"]) == code
    assert [result["gate"] for result in load_document("compare", capsys.readouterr().out)["gates"]] == gates


def test_unfair_is_code_3_with_the_rows_and_passes_when_allowed(folders, tmp_path, capsys):
    fact, value = "train.batch_size", 64
    paths = folders(train__batch_size=value)
    assert main(["compare", *paths]) == 3
    streams = capsys.readouterr()
    assert streams.out == ""
    words = " ".join(streams.err.split())
    assert words.startswith(f"Refused as unfair. The runs differ in more than the setting being tested: {fact}.")
    row = next(line for line in streams.err.splitlines() if line.split()[:1] == [fact] and str(value) in line)
    assert row.split()[-1] == str(value)
    markdown = tmp_path / "report.md"
    assert main(["compare", *paths, "--json", f"--markdown={markdown}"]) == 3
    document = load_document("compare", capsys.readouterr().out)
    assert (document["state"], [row["fact"] for row in document["rows"]]) == ("unfair", [fact])
    assert markdown.read_text().startswith("**Refused as unfair. ")
    assert main(["compare", *paths, "--allow", fact]) == 0
    assert "allow" in capsys.readouterr().out
    assert main(["compare", *paths, "--allow", "something.else"]) == 3


def test_no_valid_run_left_is_json_too(folders, capsys):
    assert main(["compare", *folders(outcome=None), "--json"]) == 5
    streams = capsys.readouterr()
    document = load_document("compare", streams.out)
    assert (document["schema_version"], document["state"]) == (1, "invalid")
    assert document["message"].startswith("amp: no valid run to compare (6 interrupted)")
    assert streams.err == f"lightning-perf: {document['message']}\n"


def test_bad_input_is_code_2_with_path_and_action(folders, tmp_path, capsys):
    base, candidate = folders()
    (tmp_path / "empty").mkdir()
    torn = tmp_path / "bad" / "run.jsonl"
    torn.parent.mkdir()
    torn.write_text("nonsense\n\n")
    for arguments, message in [
        ([base, str(tmp_path / "none")], f"{tmp_path / 'none'}: no such folder. Give the log directory of runs"),
        ([base, str(tmp_path / "empty")], f"{tmp_path / 'empty'}: no run record (run.jsonl) in it or below it."),
        ([base, str(tmp_path / "bad")], f"{torn}: not a run record, because its first line is not"),
        ([base], f"{base}: no study in this folder (study.json is missing)."),
        ([str(tmp_path / "none")], f"{tmp_path / 'none'}: no such folder. Give the folder of a study"),
        ([f"{base}/run0/run.jsonl"], "run.jsonl: no study in this folder (study.json is missing)."),
        (["", candidate], "'': a folder name is empty. Give each arm as NAME=PATH"),
        ([base, f"{candidate},"], f"'{candidate},': a folder name is empty"),
        ([base, base, base], f"two arms are named '{base}'. Give each arm its own name: NAME=PATH."),
        ([f"a={base}", f"b={base}"], "this run is given 2 times"),
        ([base, candidate, "--gate=fast"], '--gate "fast": not a gate. Write METRIC<=NUMBER'),
        ([base, candidate, "--accuracy=top5"], 'No run logged a metric "top5". They logged: val_acc.'),
    ]:
        assert main(["compare", *arguments]) == 2, arguments
        streams = capsys.readouterr()
        assert streams.out == ""
        assert streams.err.startswith("lightning-perf: ")
        assert message in streams.err


@pytest.mark.parametrize("arguments", [[], ["a", "b", "--margin=2"], ["a", "b", "--goal=nan"]])
def test_wrong_usage_is_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["compare", *arguments])
    assert exit_.value.code == 2
    assert "usage: lightning-perf compare" in capsys.readouterr().err


def test_arms_are_named_and_gathered_from_several_folders(folders, tmp_path, capsys):
    base, candidate = folders()
    (tmp_path / "with,comma").mkdir()
    (tmp_path / "amp" / "run5").rename(tmp_path / "with,comma" / "run5")
    for n in range(3):
        (tmp_path / "more").mkdir(exist_ok=True)
        (tmp_path / "amp" / f"run{n}").rename(tmp_path / "more" / f"run{n}")
    arguments = [f"true FP32={base}", f"AMP={candidate},{tmp_path / 'more'}", str(tmp_path / "with,comma"), "--json"]
    main(["compare", *arguments])
    document = json.loads(capsys.readouterr().out)
    assert [(arm["name"], arm["used"]) for arm in document["arms"]] == [("true FP32", 6), ("AMP", 5), ("with,comma", 1)]


def test_folders_of_the_same_name_are_told_apart_by_their_paths(folders, capsys):
    base, candidate = (f"{path}/run0" for path in folders())
    main(["compare", base, candidate, f"named={candidate}/../run1", "--json", "--allow=seed"])
    names = [arm["name"] for arm in json.loads(capsys.readouterr().out)["arms"]]
    assert names == [base, candidate, "named"]


def test_one_folder_is_a_study_with_its_arms(tmp_path, capsys):
    import msgspec

    arms = (StudyArm("fp32", ("x",)), StudyArm("amp", ("x",)))
    study = Study(arms=arms, blocks=6, treatment=("precision",), study_id="s")
    (tmp_path / "study.json").write_bytes(msgspec.json.encode(study))
    for position, (name, times) in enumerate((("fp32", BASE_MS), ("amp", AMP_MS))):
        for block, ms in enumerate(times, start=1):
            place = Place("s", name, block, position, treatment=("precision",))
            started = 2.0 * block + position
            folder = tmp_path / f"{block}-{name}"
            write_run(folder, step_ms=ms, place=place, train__seed=block, train__precision=name, started=started)
    assert main(["compare", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("Verdict amp is faster than fp32")
    assert "6 blocks, exact sign-flip permutation: p = 0.0312." in out
    assert "Not finished: the warm-up block, blocks 1, 2, 3, 4, 5, 6. Run the study again to resume." in out


def test_without_the_extra_the_message_names_it(folders):
    done = run("compare", *folders(), refused={"scipy"})
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (f"lightning-perf: scipy is not installed. Install it with: {install_command('compare')}\n")


def test_comparing_needs_neither_torch_nor_matplotlib_nor_what_only_posix_has(folders):
    refused = {"torch", "lightning", "pytorch_lightning", "matplotlib", "ray", "fcntl", "resource"}
    done = run("compare", *folders(), refused=refused)
    assert done.returncode == 0, done.stderr
