"""``lightning-perf gate``, with a planted slowdown in a git repository made here."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.cli import main
from lightning_perf.compare.engines.block import run_block
from lightning_perf.compare.study.checkouts import Lease
from tests.compare.planted_slowdown import git, make_repository
from tests.support.schemas import load_document


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    make_repository(folder)
    (tmp_path / "tmp").mkdir()  # the lease of the CPU is not that of other studies on this machine
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return folder


def gate(head: str, *options: str, train: tuple[str, ...] = ()) -> int:
    fixed = ("--base=main", f"--head={head}", "--devices=cpu")
    return main(["gate", *fixed, *options, "--", sys.executable, "train.py", *train])


def test_the_gate_fails_a_slowdown(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    markdown, page = repository / "gate.md", repository / "gate.html"
    assert gate("slow", "--blocks=3", f"--markdown={markdown}", f"--html={page}", "--json") == 1
    document = load_document("gate", capsys.readouterr().out)
    assert document["candidates"][0]["verdict"]["kind"] == "slower"
    (result,) = document["gates"]
    assert (result["gate"], result["outcome"]) == ("step_time<=1.05", "failed")
    assert result["value"] == pytest.approx(1.1, rel=1e-3)
    revisions = {run["arm"]: run["revision"] for run in document["runs"]}
    assert revisions == {arm: git("rev-parse", branch)[:12] for arm, branch in (("base", "main"), ("head", "slow"))}
    assert "Failed: 1 of 1 gate failed." in markdown.read_text()
    assert page.stat().st_size > 10_000
    assert git("worktree", "list").count("\n") == 0  # none is left
    assert git("status", "--porcelain", "--untracked-files=no") == ""


def test_the_gate_passes_the_twin(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("twin", "--blocks=3", "--quiet", train=("--noise=0.003",)) == 0
    assert capsys.readouterr().err == ""


def test_a_gate_that_was_interrupted_resumes(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_after_warm_up(folder: Path, block: int, *rest: Any) -> None:
        if block:
            raise KeyboardInterrupt
        run_block(folder, block, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("lightning_perf.compare.engines.local.run_block", stop_after_warm_up)
        assert gate("twin", "--blocks=1") == 130
    assert "Resume with: the same command" in capsys.readouterr().err
    assert git("worktree", "list").count("\n") == 0
    (folder,) = Path("perf-gate").iterdir()
    assert gate("twin", "--blocks=1", "--gate=step_time<=2") == 2
    assert "was started with other rules" in capsys.readouterr().err
    assert main(["study", str(folder)]) == 2
    assert "If lightning-perf gate made it, run that command again" in capsys.readouterr().err
    assert gate("twin", "--blocks=1") == 4  # a single block has no interval
    assert "Resuming: 2 of 4 runs are finished." in capsys.readouterr().err


def test_a_script_outside_of_the_checkouts_is_no_gate(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    markdown = tmp_path / "gate.md"
    options = ("--base=main", "--head=slow", "--devices=cpu", "--blocks=1", f"--markdown={markdown}")
    assert main(["gate", *options, "--", sys.executable, str(repository / "train.py")]) == 2
    error = capsys.readouterr().err
    assert f"used the code {git('rev-parse', 'twin')[:12]} instead of {git('rev-parse', 'main')[:12]}" in error
    assert "Give its path relative to the current folder" in error
    assert markdown.read_text().startswith("# No result\n\nThe runs of base used the code")


def test_each_side_has_an_environment_of_its_own(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, dict[str, str]] = {}

    def look(study: object, *_: object, **__: object) -> None:
        for arm in study.arms:  # type: ignore[attr-defined]
            shown = "import sys, mypackage, numpy; print(sys.prefix, mypackage.__path__[0], numpy.__file__, sep='\\n')"
            variables = arm.variables({"PATH": "/usr/bin:/bin"})
            done = subprocess.run(
                ["sh", "-c", f'python -c "{shown}" && lightning-perf --version && cat setup'],
                cwd=arm.folder, env=variables, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            names = ("prefix", "package", "numpy", "version", "setup")
            seen[arm.name] = dict(zip(names, done.stdout.splitlines(), strict=True))
        raise KeyboardInterrupt

    monkeypatch.setattr("lightning_perf.commands.gate.run_blocks", look)
    setup = "python -c 'import sys; print(sys.prefix)' > setup"
    assert gate("slow", f"--setup={setup}") == 130
    assert f"setup of base: {setup}" in capsys.readouterr().err
    folder = Path("perf-gate").resolve() / "-".join(git("rev-parse", name)[:12] for name in ("main", "slow"))
    for arm, branch in (("base", "main"), ("head", "slow")):
        environment = str(folder / "checkouts" / f"environment-{arm}")
        assert seen[arm]["prefix"] == seen[arm]["setup"] == environment
        assert seen[arm]["package"] == str(
            folder / "checkouts" / f"{arm}-{git('rev-parse', branch)[:12]}" / "src" / "mypackage"
        )
        assert seen[arm]["version"].startswith("lightning-perf ")
    assert seen["base"]["numpy"] == seen["head"]["numpy"]  # the packages of the current environment
    assert not (folder / "checkouts" / "environment-base").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--base=main", "--head=twin"), "The command to measure is missing"),
        (("--base=main", "--head=main", "--", "true"), "are the same commit"),
        (("--base=nowhere", "--", "true"), "--base 'nowhere': the repository"),
        (("--", "true"), "--base: the baseline is missing"),
        (("--base=nowhere", "--", "true"), "git fetch origin nowhere"),
        (("--base=main", "--head=--upload-pack=x", "--", "true"), "has no such commit"),
        (("--base=main", "--setup=echo no wheel; exit 3", "--", "true"), "ended with exit code 3 for base"),
        (("--base=main", "--setup=echo no wheel; exit 3", "--", "true"), "no wheel"),
        (("--base=main", "--env=other:X=1", "--", "true"), "NAME is one of base, head"),
        (("--base=main", "--blocks=3", "--precise=0.01", "--", "true"), "--precise needs at least 12"),
        (("--base=main", "--gate=speed<=1", "--", "true"), 'unknown metric "speed"'),
    ],
)
@pytest.mark.usefixtures("repository")
def test_errors_say_what_to_do(arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", "--devices=cpu", *arguments]) == 2
    assert problem in capsys.readouterr().err
    assert git("worktree", "list").count("\n") == 0


def test_a_folder_that_one_commit_lacks_is_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "new").mkdir()
    (repository / "new" / "file").touch()
    git("add", ".")
    git("commit", "-q", "-m", "new folder")
    monkeypatch.chdir(repository / "new")
    assert main(["gate", "--base=main", "--devices=cpu", "--", "true"]) == 2
    assert "has no folder 'new/'" in capsys.readouterr().err


def test_a_folder_without_a_repository_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert main(["gate", "--base=main", "--", "true"]) == 2
    assert "not in a git repository" in capsys.readouterr().err


def test_uncommitted_changes_are_noticed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("gate", "--base=main", "--setup=exit 3", "--out=out")
    assert main([*options, "--", "true"]) == 2
    assert "not committed" not in capsys.readouterr().err
    (repository / "train.py").write_text("")
    assert main([*options, "--", "true"]) == 2
    assert "Changes that you have not committed are in neither checkout." in capsys.readouterr().err


def test_two_gates_in_one_folder_do_not_share_checkouts(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Lease(repository / "shared", "checkouts"):
        assert gate("twin", "--out=shared") == 2
    assert "another lightning-perf gate uses this folder" in capsys.readouterr().err
