"""The document of a tuning, its command, and its predictions next to the measured gains."""

import io
import re
import subprocess

import pytest
from msgspec.structs import replace

from lightning_perf.cli import main
from lightning_perf.run_files.estimates import find_outcomes
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune import campaign, resume
from lightning_perf.tune.campaign import checked_estimates
from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.result import Losses, Outcome, Place, Trial, TuneResult
from lightning_perf.workers.script import Script
from tests.support.schemas import load_document


def ratio(value, low=None, high=None):
    return Estimate(value, low, high, 0.95, 12, "")


TRIALS = (
    Trial("channels-last", Outcome.KEPT, None, (0.6, 0.8), ratio(0.7, 0.65, 0.75), ("module.to(channels_last)",)),
    Trial("16-mixed", Outcome.REPLACED, "channels-last is faster still", None, ratio(0.9, 0.85, 0.95), ()),
    Trial("workers-4-prefetch-4", Outcome.SLOWER, None, None, ratio(11.5, 10.4, 12.9), ()),
    Trial("compile-max-autotune", Outcome.FAILED, "no [red]compiler[/red]\x1b[31m | here", None, None, ()),
    Trial("bf16-mixed", Outcome.REJECTED, "the loss goes from 1 to 2", None, ratio(0.9, 0.8, 0.95), ()),
    Trial("batch-size-x2", Outcome.MEASURED, None, None, ratio(0.9, 0.8, 0.95), ("batch_size=8", "lr = 2 * lr")),
    Trial("workers-1", Outcome.NOT_TRIED, "the budget is spent", None, None, ()),
    Trial("workers-2", Outcome.NOT_TRIED, "the budget is spent", None, None, ()),
    Trial("tf32", Outcome.NOT_APPLICABLE, "needs a CUDA GPU", None, None, ()),
    Trial("pin-memory", Outcome.NOT_APPLICABLE, "needs a CUDA GPU", None, None, ()),
)
LINES = ("module = module.to(memory_format=torch.channels_last)",)


NONE = {"kept": (), "combined": None, "confirmed": False}


def result(*trials, **fields):
    usual = {
        "schema_version": 1, "tool_version": "0", "machine": Machine("cpu", None, 2, "a [CPU]"), "baseline_ms": 12.345,
        "noise": ratio(1.001, 0.99, 1.01), "kept": ("channels-last",), "combined": ratio(0.7, 0.66, 0.74),
        "confirmed": True, "lines": LINES, "window_steps": 20, "rounds": 12, "seconds": 61.0, "budget_s": 600.0,
        "interrupted": False, "notes": ("A note.",),
    }  # fmt: skip
    return TuneResult(trials=trials or TRIALS, **(usual | fields))


@pytest.fixture
def tuned(monkeypatch):
    monkeypatch.setattr(
        campaign, "run_campaign", lambda source, settings, on_progress, **_: on_progress("working …") or result()
    )


def test_the_console_fits_80_columns():
    file = io.StringIO()
    result().print(file=file, width=80)
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"channels-last +−40 to −20 % +−30.0 % \(−35.0 to −25.0\) +kept", text)
    assert "+1050 % (+940 to +1190)" in text
    assert "compile-max-autotune: no [red]compiler[/red]\\x1b[31m | here" in text
    assert "workers-1, workers-2: the budget is spent" in text
    assert "tf32, pin-memory: needs a CUDA GPU" in text
    assert "batch-size-x2: another training, for you to choose: batch_size=8; lr = 2 * lr" in text
    assert text.index("Change") < text.index("lever ")
    assert "16-mixed: channels-last is faster still" in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "All together, in fresh processes: −30.0 % (−34.0 to −26.0) time per step, 1.43 times as fast."),
        ({"confirmed": False}, "the gain is not certain"),
        ({"combined": None, "confirmed": False}, "were not measured all together"),
        (NONE, "certainly faster. For 2 others there was no time: give more minutes."),
        (NONE | {"trials": TRIALS[:1]}, "leave it unchanged.**"),
        (NONE | {"trials": [replace(TRIALS[0], outcome=Outcome.NOT_CONFIRMED)]}, "differed by too much to confirm it"),
        (NONE | {"trials": TRIALS[:1], "noise": ratio(0.9, 0.8, 1.1)}, "unchanged. A gain of less than 20 % could not"),
    ],
)
def test_the_verdict_says_what_is_certain(settings, said):
    settings = dict(settings)
    verdict = result(*settings.pop("trials", ()), **settings).to_markdown().splitlines()[0].replace("\\", "")
    assert said in verdict
    assert ("1.43 times as fast" in verdict) == (not settings)


def test_what_the_training_differs_from_itself_says_what_other_figures_mean():
    quiet = result().to_markdown().replace("\\", "")
    assert "The training against itself: +0.1 % (−1.0 to +1.0). A change from −1.0 to +1.0 % counts as none." in quiet
    assert "leaves out 0" not in quiet
    assert "- batch-size-x2: another training, for you to choose" in quiet
    odd = result(noise=ratio(1.082, 1.041, 1.124)).to_markdown().replace("\\", "")
    assert "(+4.1 to +12.4). A change from −11.0 to +12.4 % counts as none. Its own interval does not contain 0" in odd
    assert "- batch-size-x2: within the noise of the training; another training" in odd


def test_a_gain_within_the_noise_says_why_it_is_none():
    trials = [
        Trial(f"workers-{n}", Outcome.NO_GAIN, None, None, ratio(0.7, 0.5, high), ())
        for n, high in [(1, 0.9), (2, 1.1)]
    ]
    text = result(*trials, noise=ratio(1.1, 0.7, 1.6)).to_markdown()
    assert "- workers-1: faster, but by no more than the training differs from itself" in text


def test_markdown_is_escaped():
    text = result().to_markdown()
    assert "| channels-last | −40 to −20 % | −30.0 % (−35.0 to −25.0) | kept |" in text
    assert "no \\[red\\]compiler\\[/red\\]\\\\x1b\\[31m \\| here" in text
    assert "```py\nmodule = module.to(memory_format=torch.channels_last)\n```" in text


def test_output_goes_to_stdout_and_progress_to_stderr(tuned, capsys):
    assert main(["tune", "any:thing"]) == 0
    streams = capsys.readouterr()
    assert "Kept: channels-last." in streams.out
    assert streams.err == "lightning-perf: working …\nlightning-perf: to resume later, tune with -o FOLDER\n"


PATCH = """\
--- a/train.py
+++ b/train.py
@@ -1 +1 @@
-Trainer()
+Trainer(precision="bf16-mixed")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A tuning of a script in a git repository, which notes its source; the script's file."""
    path = tmp_path / "train.py"
    path.write_text("Trainer()\n")
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm first"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    sources = []
    places = (Place("bf16-mixed", "Trainer(…)", "train.py", 1), Place("keep-memory", "export A=1", reason="no file"))

    def campaign_of(source, settings, on_progress, **_):
        sources.append(source)
        return result(places=places, diff=PATCH, command="lightning-perf tune train.py", versions={"torch": "2.9"})

    monkeypatch.setattr(campaign, "run_campaign", campaign_of)
    return path, sources


def test_options_after_a_script_are_its_own_and_those_after_a_name_are_not(script, capsys):
    assert main(["tune", "--quiet", "train.py", "--json", "--levers", "warp-drive"]) == 0
    assert main(["tune", "--quiet", "-m", "json.tool", "--json"]) == 0
    assert main(["tune", "any:thing", "--minutes", "3", "--quiet"]) == 0
    assert script[1] == [
        Script(("train.py", "--json", "--levers", "warp-drive")), Script(("json.tool", "--json"), True), "any:thing"
    ]  # fmt: skip
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["tune", "any:thing", "other"])
    assert "unexpected argument 'other'" in capsys.readouterr().err
    assert main(["tune", "no.py"]) == 2
    assert "no.py: there is no such script" in capsys.readouterr().err


def test_the_patch_is_shown_kept_and_applied(script, tmp_path, capsys):
    assert main(["tune", "--out", "tuning", "train.py"]) == 0
    streams = capsys.readouterr()
    assert (tmp_path / "tuning" / "tune.patch").read_text() == PATCH
    assert f"git -C {tmp_path} apply {tmp_path}/tuning/tune.patch" in streams.err
    assert '+Trainer(precision="bf16-mixed")' in streams.out
    assert "train.py:1: Trainer(…) (bf16-mixed)" in streams.out
    assert "keep-memory: write this line yourself. no file." in streams.out
    assert script[0].read_text() == "Trainer()\n"
    assert main(["tune", "--apply", "train.py"]) == 0
    assert script[0].read_text() == 'Trainer(precision="bf16-mixed")\n'
    assert "applied the patch to train.py" in capsys.readouterr().err


def test_a_patch_is_not_applied_to_files_with_changes(script, capsys, monkeypatch):
    script[0].write_text("Trainer()\n# mine\n")
    assert main(["tune", "--apply", "train.py"]) == 2
    assert "--apply: train.py has changes that are not committed. Commit or stash" in capsys.readouterr().err
    assert script[0].read_text() == "Trainer()\n# mine\n"
    assert main(["tune", "--apply", "any:thing"]) == 2
    assert "--apply: any:thing is not a script" in capsys.readouterr().err
    monkeypatch.setenv("GIT_DIR", "/no/such")
    assert main(["tune", "--apply", "train.py"]) == 2
    assert "is not in a git repository" in capsys.readouterr().err


def test_markdown_reads_as_a_pull_request(script, capsys):
    losses = Losses(6, 10, 2.0, 1.99)
    text = result(losses=losses, diff=PATCH, places=(Place("a", "b", "train.py", 1),), command="x y").to_markdown()
    text = text.replace("\\", "")
    assert f"```diff\n{PATCH}```" in text
    assert "| time per step | 12.3 ms | 8.64 ms | −30.0 % (−34.0 to −26.0) |" in text
    assert "| mean loss of steps 6 to 10 | 2 | 1.99 | −0.5 % |" in text
    assert "```sh\nx y\n```" in text


def test_an_interrupted_tuning_shows_what_it_has_and_ends_as_interrupted(monkeypatch, capsys):
    monkeypatch.setattr(
        campaign, "run_campaign", lambda *_, **__: result(interrupted=True, combined=None, confirmed=False)
    )
    assert main(["tune", "any:thing"]) == 130
    assert "Kept: channels-last. They were not measured all together" in capsys.readouterr().out


def test_json_is_the_document(tuned, capsys):
    assert main(["tune", "any:thing", "--json"]) == 0
    document = load_document("tune", capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["kept"] == ["channels-last"]
    assert document["trials"][0]["measured"]["value"] == 0.7
    assert document["trials"][2]["outcome"] == "slower"
    assert set(document) == set(TuneResult.__struct_fields__)


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--levers", "warp-drive"], "unknown lever 'warp-drive'; choose from bf16-mixed"), (["--rounds", "2"], "from 6")],
)
def test_wrong_settings_are_code_2(options, said, capsys):
    assert main(["tune", "any:thing", *options]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert said in streams.err


def test_a_training_that_fails_is_code_2(monkeypatch, capsys):
    def fail(*_, **__):
        raise TuneError("the unchanged training fails: \x1b[31mboom")

    monkeypatch.setattr(campaign, "run_campaign", fail)
    assert main(["tune", "any:thing"]) == 2
    assert capsys.readouterr().err == "lightning-perf: the unchanged training fails: \\x1b[31mboom\n"


@pytest.mark.parametrize("option", [["--minutes", "0"], ["--minutes", "soon"], ["--window", "inf"]])
def test_wrong_usage(option, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["tune", "any:thing", *option])
    assert stopped.value.code == 2


def no_gain(lever, low, high):
    return Trial(lever, Outcome.NO_GAIN, None, None, ratio((low + high) / 2, low, high), ())


@pytest.mark.parametrize(
    ("trials", "fields", "code", "said"),
    [
        (TRIALS[:1], {}, 1, "failed: channels-last saves 5 % or more"),
        (TRIALS[:1], {"combined": ratio(0.94, 0.90, 0.96)}, 4, "inconclusive: channels-last may save"),
        (TRIALS[:1], {"combined": ratio(0.97, 0.96, 0.98)}, 0, "passed: no lever saves 5 %"),
        (TRIALS[:1], {"confirmed": False}, 4, "inconclusive: channels-last may"),
        (TRIALS[:1], {"combined": None, "confirmed": False}, 4, "inconclusive: channels-last may"),
        ((no_gain("workers-1", 0.97, 1.03),), {"kept": ()}, 0, "passed"),
        ((no_gain("workers-1", 0.93, 1.03),), {"kept": ()}, 4, "inconclusive: workers-1 may save 5 %"),
        (TRIALS[6:8], {"kept": ()}, 4, "inconclusive: workers-1, workers-2 may"),
        (TRIALS[2:6], {"kept": ()}, 0, "passed"),  # slower, failed, harmful, and another training
    ],
)
def test_a_gate_fails_if_the_script_leaves_speed_on_the_table(trials, fields, code, said, monkeypatch, capsys):
    if not fields.get("kept", True):
        fields = {"combined": None, "confirmed": False, **fields}
    monkeypatch.setattr(campaign, "run_campaign", lambda *_, **__: result(*trials, **fields))
    assert main(["tune", "--gate", "0.05", "any:thing"]) == code
    assert f"lightning-perf: gate {said}" in capsys.readouterr().err


def trial(lever, outcome, predicted, measured, rule, **fields):
    found = None if measured is None else ratio(measured, measured - 0.05, measured + 0.05)
    return Trial(lever, outcome, None, predicted, found, (), rule, **{"source": rule and "general", **fields})


PREDICTED = result(
    trial("channels-last", Outcome.KEPT, (0.6, 0.8), 0.7, "cpu-channels-last", source="probed"),
    trial("bf16-mixed", Outcome.SLOWER, (0.5, 0.9), 1.1, "cpu-bf16", on_top_of=("channels-last",)),
    trial("16-mixed", Outcome.SLOWER, (0.5, 0.9), 0.9, "cpu-bf16"),
    trial("workers-1", Outcome.NO_GAIN, (0.4, 0.5), 0.95, "input-bound"),
    trial("workers-2", Outcome.KEPT, (0.4, 0.5), 0.45, "input-bound"),
    trial("workers-4", Outcome.FAILED, (0.4, 0.5), None, "input-bound"),
    trial("fused-optimizer", Outcome.NO_GAIN, None, 0.9, None),
    baseline_ms=200.0,
    network="Net, 12 parameters",
    tuning="tuning 1",
)


def test_shares_become_milliseconds_of_the_unchanged_step():
    found = {outcome.setting: outcome for outcome in checked_estimates(PREDICTED)}
    assert set(found) == {"channels-last", "bf16-mixed", "workers-2"}, "the fastest of a family counts"
    one = found["channels-last"]
    assert (one.rule, one.source, one.step_ms) == ("cpu-channels-last", "probed", 200.0)
    assert (one.low_ms, one.high_ms) == pytest.approx((40.0, 80.0))
    assert (one.gain_ms, one.gain_low_ms, one.gain_high_ms) == pytest.approx((60.0, 50.0, 70.0))
    assert (one.network, one.machine, one.measurement) == ("Net, 12 parameters", "a [CPU]", "tuning 1")
    assert found["bf16-mixed"].on_top_of == ("channels-last",)
    assert found["bf16-mixed"].gain_ms == pytest.approx(-20.0)


def test_the_command_stores_them_next_to_the_document(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(campaign, "run_campaign", lambda *_, **__: PREDICTED)
    assert main(["tune", "any:thing", "--out", str(tmp_path / "tuning")]) == 0
    assert len(find_outcomes(tmp_path)) == 3
    assert main(["tune", "any:thing"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tuning"], "without --out there is no folder to store them in"
    capsys.readouterr()


def test_an_unfinished_tuning_resumes_with_the_same_command(script, tmp_path, monkeypatch, capsys):
    given = []

    def campaign_of(source, settings, on_progress, *, earlier=None, save):
        given.append(earlier)
        found = result(
            versions=resume.installed_versions(),
            command=resume.command_of(source, settings),
            code=resume.code_of(source),
        )
        save(found)
        return found

    monkeypatch.setattr(campaign, "run_campaign", campaign_of)
    words = ["tune", "-o", "tuning", "train.py", "--lr", "1"]
    assert main(words) == 0
    assert main(["tune", "-o", "tuning", "--minutes", "3", *words[3:]]) == 0, "another budget is no other tuning"
    assert [earlier and earlier.open_levers for earlier in given] == [None, ("workers-1", "workers-2")]
    assert "to resume, run the same command again" in capsys.readouterr().err

    for changed, said in (([*words[:-1], "2"], "train.py --lr 1, now "), (words, "code: ")):
        if changed is words:
            script[0].write_text("Trainer(max_epochs=2)\n")
        assert main(changed) == 2
        error = capsys.readouterr().err
        assert "tuning/tune.json holds an unfinished tuning of another training (" in error
        assert said in error
        assert "Give another folder, or remove tuning/tune.json." in error
    script[0].write_text("Trainer()\n")
    monkeypatch.setattr(resume, "installed_versions", lambda: {"torch": "9.9"})
    assert main(words) == 2
    assert re.search(r"torch: \S+, now 9\.9", capsys.readouterr().err)
    assert len(given) == 2


def test_a_finished_tuning_starts_again(script, tmp_path, capsys):
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "tune.json").write_text(result(*TRIALS[:6], command="another").to_json())
    assert main(["tune", "-o", "tuning", "train.py"]) == 0
    assert len(script[1]) == 1


def test_code_outside_git_is_that_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_DIR", "/no/such")
    for name in ("train.py", "model.py", "notes.txt"):
        (tmp_path / name).write_text("1")
    before = resume.code_of(Script(("train.py",)))
    (tmp_path / "notes.txt").write_text("2")
    assert resume.code_of(Script(("train.py", "--lr", "3"))) == before
    (tmp_path / "model.py").write_text("2")
    assert resume.code_of(Script(("train.py",))) != before
