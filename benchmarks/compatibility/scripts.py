"""Run scripts of public repositories, unchanged, alone and under ``lightning-perf run``."""

from __future__ import annotations

import difflib
import hashlib
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.compatibility.checkouts import CheckoutError, checkout, checkout_commit, write_mnist
from benchmarks.compatibility.environments import ENVIRONMENTS, InstallError, python_of
from benchmarks.compatibility.rows import environment_of
from lightning_perf.commands.run import HEADING

LIMIT_S = 300

MESSAGE = "lightning-perf: "
"""The start of each message of ``run``."""

PROGRESS = re.compile(r"it/s|s/it|\d%\||^\W*$|^\s{20,}")
"""Lines of progress bars: they show times."""

CHANGING = re.compile(
    r"\d{4}-\d\d-\d\d[ _T]\d\d[:-]\d\d[:-]\d\d([,.]\d+)?|\d\d:\d\d:\d\d|\d+(\.\d+)? ?(sec|s)\b"
    r"|0x[0-9a-f]{6,}|/\S*compatibility-\w+"
)
"""Times, addresses and temporary folders, which differ between any two runs."""


@dataclass(frozen=True)
class Script:
    """A script by others.

    Attributes:
        source: The repository, or the package with this command.
        command: The script and its arguments, after ``python``, in the folder of the repository.
        environment: The environment that it runs in; "" for that of this process.
        prepare: Draws data into that folder, and returns nothing.
    """

    source: str
    command: tuple[str, ...]
    environment: str = ""
    prepare: Callable[[Path], None] = lambda _: None


@dataclass(frozen=True)
class ScriptRow:
    """How a script behaves alone and under ``lightning-perf run``.

    Attributes:
        source: The repository with its commit, or the package.
        command: The script and its arguments.
        exit_codes: The exit code alone and under ``run``.
        repeats: Whether two runs alone have the same output and checkpoints.
        same_output: Whether standard output has the same lines, without progress bars and times.
        same_errors: The same for standard error, without the report and the messages of ``run``.
        differences: The first lines that differ.
        same_checkpoints: Whether the tensors of all checkpoints are the same bit for bit; None without checkpoints.
        new_files: Files that only the run with lightning_perf left, outside of its folder.
        report: The first line of the report, or the message of ``run``.
        error: The reason, if there is no result.
    """

    source: str
    command: str
    exit_codes: tuple[int, int] = (0, 0)
    repeats: bool = True
    same_output: bool = False
    same_errors: bool = False
    differences: tuple[str, ...] = ()
    same_checkpoints: bool | None = None
    new_files: tuple[str, ...] = ()
    report: str = ""
    error: str = ""


def _datasets(folder: Path) -> None:
    """Draw MNIST where Lightning's examples look for it."""
    for place in ("Datasets", "examples/Datasets", "data"):
        write_mnist(folder / place / "MNIST" / "raw", training=60000, test=1000)


def _words(folder: Path) -> None:
    draw = np.random.default_rng(0)
    words = [f"word{number}" for number in range(200)]
    lines = [" ".join(draw.choice(words, 100)) for _ in range(1470)]
    (folder / "data").mkdir()
    (folder / "data" / "wikitext-2.txt").write_text("\n".join(lines), encoding="utf-8")


def _digits(folder: Path) -> None:
    write_mnist(folder / "data" / "MNIST" / "raw", training=5000, test=1000)


def _molecules(folder: Path) -> None:
    smiles = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "CCCC", "C1CCCCC1", "CO", "CN"] * 40
    rows = [f"{text},{len(text) + number % 7}" for number, text in enumerate(smiles)]
    (folder / "molecules.csv").write_text("\n".join(["smiles,label", *rows]), encoding="utf-8")


_CLI = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=60", "--trainer.limit_val_batches=5")
_FEW = (*_CLI, "--trainer.limit_test_batches=5", "--trainer.limit_predict_batches=2")
_TEMPLATE = ("src/train.py", "trainer=cpu", "seed=1", "data.train_val_test_split=[4000,1000,1000]")

SCRIPTS: Mapping[str, Script] = {
    "bug-report": Script("pytorch-lightning", ("examples/pytorch/bug_report/bug_report_model.py",)),
    "autoencoder": Script(
        "pytorch-lightning", ("examples/pytorch/basics/autoencoder.py", *_FEW), prepare=_datasets
    ),
    "image-classifier": Script(
        "pytorch-lightning", ("examples/pytorch/basics/backbone_image_classifier.py", *_FEW), prepare=_datasets
    ),
    "language-model": Script("pytorch-lightning", ("examples/pytorch/basics/transformer.py",), prepare=_words),
    "template": Script(
        "lightning-hydra-template",
        (*_TEMPLATE, "trainer.max_epochs=2", "trainer.min_epochs=1", "test=false"),
        environment="hydra",
        prepare=_digits,
    ),
    "template-error": Script(
        "lightning-hydra-template", (*_TEMPLATE, "model.optimizer.lr=-1"), environment="hydra", prepare=_digits
    ),
    "chemprop-cli": Script(
        "chemprop",
        ("bin/chemprop", "train", "--data-path", "molecules.csv", "--task-type", "regression", "--epochs", "3",
         "--num-workers", "0", "--pytorch-seed", "1", "--output-dir", "out"),
        environment="science",
        prepare=_molecules,
    ),
    "fabric-script": Script(
        "pytorch-lightning",
        ("examples/fabric/image_classifier/train_fabric.py", "--epochs", "1", "--dry-run"),
        prepare=_datasets,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class _Run:
    code: int
    output: str
    errors: str
    checkpoints: Mapping[str, str]
    files: frozenset[str]


def try_script(name: str, environments: Path) -> ScriptRow:
    """Run a script alone and under ``lightning-perf run``, and compare the two.

    Args:
        name: One of `SCRIPTS`.
        environments: The folder of the environments.
    """
    script = SCRIPTS[name]
    shown = " ".join(script.command)
    is_repository = script.source not in {one.split("==")[0] for all_ in ENVIRONMENTS.values() for one in all_}
    try:
        python = python_of(script.environment, environments)
        source = f"{script.source} @ {checkout_commit(script.source)}" if is_repository else _pinned(script.source)
        alone, again = (_run(script, python, (), is_repository=is_repository) for _ in range(2))
        measured = _run(script, python, ("-m", "lightning_perf", "run"), is_repository=is_repository)
    except (InstallError, CheckoutError, subprocess.TimeoutExpired) as error:
        return ScriptRow(script.source, shown, error=str(error))
    errors, messages = _split(measured.errors)
    out, err = (
        list(difflib.unified_diff(readable_lines(before), readable_lines(after), "alone", "run", n=0, lineterm=""))[2:]
        for before, after in ((alone.output, measured.output), (alone.errors, errors))
    )
    return ScriptRow(
        source,
        shown,
        exit_codes=(alone.code, measured.code),
        repeats=alone.checkpoints == again.checkpoints and readable_lines(alone.output) == readable_lines(again.output),
        same_output=not out,
        same_errors=not err,
        differences=tuple(line[:200] for line in (*out[:6], *err[:6])),
        same_checkpoints=alone.checkpoints == measured.checkpoints if alone.checkpoints else None,
        new_files=tuple(sorted(file for file in measured.files - alone.files if "/perf/" not in f"/{file}")),
        report=messages,
    )


def _split(errors: str) -> tuple[str, str]:
    """Divide standard error into the script's part, and the message or the first sentence of ``run``."""
    if HEADING in errors:
        own, _, report = errors.partition(f"\n{HEADING}\n")
        sentence = " ".join(report.split()).split(". ")[0]
        return own, f"the report: *{sentence.removeprefix('Where ')}* …"
    lines = errors.splitlines(keepends=True)
    said = [line.removeprefix(MESSAGE).strip() for line in lines if line.startswith(MESSAGE)]
    return "".join(line for line in lines if not line.startswith(MESSAGE)), "; ".join(said)


def _pinned(package: str) -> str:
    return next(one for all_ in ENVIRONMENTS.values() for one in all_ if one.startswith(package)).replace("==", " ")


def _run(script: Script, python: Path, prefix: tuple[str, ...], *, is_repository: bool) -> _Run:
    with tempfile.TemporaryDirectory(prefix="compatibility-") as scratch:
        folder = Path(scratch) / "work"
        if is_repository:
            # A copy: scripts write next to themselves.
            command = ["git", "clone", "--quiet", "--no-checkout", str(checkout(script.source)), str(folder)]
            subprocess.run(command, check=True, capture_output=True)
            top = script.command[0].split("/")[0]
            parts = [top] if top == "examples" else ["."]
            subprocess.run(
                ["git", "-C", str(folder), "checkout", "HEAD", "--", *parts], check=True, capture_output=True
            )
        else:
            folder.mkdir()
        script.prepare(folder)
        before = _files(folder)
        first, *arguments = script.command
        command = [
            str(python),
            *prefix,
            str(python.parent / first[4:]) if first.startswith("bin/") else first,
            *arguments,
        ]
        environment = {**environment_of(Path(scratch)), "COLUMNS": "100", "HYDRA_FULL_ERROR": "1"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        checkpoints = {_place(path, folder): _tensors(path) for path in sorted(folder.rglob("*.ckpt"))}
        files = frozenset(_place(folder / file, folder) for file in _files(folder) - before)
        return _Run(done.returncode, done.stdout, done.stderr, checkpoints, files)


def _files(folder: Path) -> frozenset[str]:
    return frozenset(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and ".git/" not in str(path) and "__pycache__" not in str(path)
    )


def _place(path: Path, folder: Path) -> str:
    """Return a path without the time and the process ID that loggers write into it."""
    text = re.sub(r"\d{4}-\d\d-\d\d[_T]\d\d-\d\d-\d\d", "TIME", str(path.relative_to(folder)))
    return re.sub(r"events\.out\.tfevents\.\S+", "events", text)


def _tensors(path: Path) -> str:
    """Hash the tensors of a checkpoint. Its other entries hold the names of callbacks and times."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(path) as archive:
        for name in sorted(name for name in archive.namelist() if "/data/" in name):
            digest.update(archive.read(name))
    return digest.hexdigest()


def readable_lines(text: str) -> list[str]:
    """Return the lines of an output without progress bars, and with a mark in the place of times and folders."""
    lines = [CHANGING.sub("…", line.rstrip()) for line in re.split(r"[\r\n]+", text)]
    return [line for line in lines if not PROGRESS.search(line)]
