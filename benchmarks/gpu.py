"""Check this project's claims about GPUs on one CUDA GPU, in stages of at most eight minutes.

Stages, in the order to run them:

- first: facts of the machine; rates of FP32, TF32, FP16, and BF16 products; ResNet-50 in four precisions at batch 128,
  with one run folder of each; the tests in ``tests/on_gpu.py``
- table: ResNet-50 in 16 combinations of precision, batch size, and memory format, with the predicted gains
- overhead: alternating fits with and without `PerfCallback`; a step that waits for the device is an error
- planted: each finding about GPUs is planted, its advice followed, and the gain compared with the estimate
- rest: inference variants of the recipe's ResNet, and ``lightning-perf tune``
- compare: the recipe's comparison of precisions, in twelve processes

Each stage writes at most eight files to ``--out``, from its first step on: ``STAGE.md`` (all tables), ``STAGE.jsonl``
(raw figures), ``STAGE.log`` (all output), and runs or plots. A step that fails or takes too long is named at the end
and does not stop the others. The tables are printed last, so that they survive a shortened log.

The packages in `NEEDED` are enough. Without others, e.g. ONNX Runtime, single inference variants are left out.

Run as ``benchmarks/gpu.sh STAGE --out DIR``. ``--tiny`` runs the same on a CPU at sizes that only show that it works.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.options import make_parser
from lightning_perf.workers.command import StoppedError, run_command

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
NEEDED = ("cloudpickle", "lightning", "matplotlib", "msgspec", "pytest", "rich", "scipy", "torch", "torchvision")
"""Packages without which no stage works."""

STAGE_S, TINY_PATIENCE = 480.0, 4.0
"""Maximum time of a stage, and its factor on a CPU. A step gets at most the rest."""


@dataclass(frozen=True)
class Sizes:
    """How much work the steps do: on a GPU, or on a CPU just enough to show that they run."""

    device: str
    model: str
    tuned: str
    image_size: int
    epochs: int
    runs: int
    planted_rounds: int
    overhead_minutes: float
    tune_minutes: float
    tiny: bool


ON_GPU = Sizes("cuda", "resnet50", "resnet18", 200, 1, 3, 3, 5.0, 3.0, tiny=False)
TINY = Sizes("cpu", "cnn", "cnn", 18, 1, 1, 1, 0.01, 12.0, tiny=True)


@dataclass(frozen=True)
class Step:
    """One command of a stage.

    Attributes:
        name: Its name, for ``--only``.
        command: Arguments for Python. ``{work}`` is a scratch folder.
        limit_s: Its timeout in seconds.
        pages: Markdown files in the scratch folder that become sections of the stage's page.
        raw: JSON or JSON Lines files in the scratch folder that go into the stage's raw figures.
        kept: Files in the scratch folder to copy to the results.
        output_is_page: Whether its output becomes a section of the page too.
        environment: Environment variables to set.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    pages: Sequence[str] = ()
    raw: Sequence[str] = ()
    kept: Sequence[str] = ()
    output_is_page: bool = False
    environment: Mapping[str, str] | None = None


def first(sizes: Sizes) -> list[Step]:
    """Return the steps of the first minutes: facts, peak rates, and the headline."""
    tiny = ["--tiny"] if sizes.tiny else []
    return [
        Step("facts", ["-m", "benchmarks.gpu_facts", "facts"], 30, output_is_page=True, raw=["facts.json"]),
        Step("rates", ["-m", "benchmarks.gpu_facts", "rates"], 40, output_is_page=True, raw=["rates.json"]),
        Step(
            "headline",
            [
                *("-m", "benchmarks.gpu_precision", "--device", sizes.device, "--models", "resnet50"),
                *("--batches", "128", "--channels-last-only", "--keep-runs", "--out", "{work}/headline", *tiny),
            ],
            180,
            pages=["headline.md"],
            raw=["headline.jsonl"],
            kept=[f"run-{arm}.tar.gz" for arm in ("fp32", "tf32", "fp16", "bf16")],
        ),
        *(_tests(name, marked, limit_s, tiny=sizes.tiny) for name, marked, limit_s in TESTS),
    ]


TESTS = (("on_gpu", "not alone", 140), ("alone", "alone", 90))
"""Tests that may share the device, and those that time or fill it: step, pytest's marks, and limit in seconds."""


def _tests(name: str, marked: str, limit_s: float, *, tiny: bool) -> Step:
    return Step(
        name,
        [
            # Without pyproject.toml: its options need plugins.
            *("-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT), "--import-mode", "importlib"),
            *("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnknownMarkWarning"),
            *("--durations=20", "tests/on_gpu.py", "-m", marked),
            *(["-n", "6"] if name == "on_gpu" and importlib.util.find_spec("xdist") else []),
            *(["--collect-only"] if tiny else []),
        ],
        limit_s,
        output_is_page=True,
        environment={"LIGHTNING_PERF_TEST_ON_GPU": "1"},
    )


def table(sizes: Sizes) -> list[Step]:
    """Return the one step of the table of precisions."""
    command = ["-m", "benchmarks.gpu_precision", "--device", sizes.device, "--out", "{work}/table"]
    return [
        Step(
            "table",
            [*command, *(["--tiny"] if sizes.tiny else [])],
            STAGE_S,
            pages=["table.md"],
            raw=["table.jsonl"],
        )
    ]


def overhead(sizes: Sizes) -> list[Step]:
    """Return the one step of the callback's own cost."""
    command = ["-m", "benchmarks.training.overhead", "--device", sizes.device, "--out", "{work}/overhead"]
    size = ["--rounds", "1"] if sizes.tiny else ["--minutes", str(sizes.overhead_minutes)]
    return [Step("overhead", [*command, *size], 480, pages=["overhead.md"], raw=["overhead.json"])]


def planted(sizes: Sizes) -> list[Step]:
    """Return the one step of planted faults."""
    command = ["-m", "benchmarks.savings.planted", "--here-only", "--rounds", str(sizes.planted_rounds)]
    size = ["--only", "tiny batches, MLP"] if sizes.tiny else ["--results", "{work}/planted.md"]
    return [Step("planted", [*command, *size], STAGE_S, pages=["planted.md"], output_is_page=sizes.tiny)]


def _recipe(sizes: Sizes) -> list[str]:
    """Return the options of a training of the recipe."""
    return [
        *("--model", sizes.model, "--image-size", str(sizes.image_size), "--batch-size", "32"),
        *("--epochs", str(sizes.epochs), *(["--data", os.environ["DATA"]] if os.environ.get("DATA") else [])),
    ]


def rest(sizes: Sizes) -> list[Step]:
    """Return the steps that train the recipe, make inference variants of it, and tune it."""
    few = ["--variants", "eager,channels-last", "--seconds", "0.1", "--limit", "64"] if sizes.tiny else []
    window = ["--window", "0.05", "--rounds", "6", "--levers", "channels-last"] if sizes.tiny else []
    return [
        Step(
            "train",
            ["-m", "recipes.signlang", "train", "--log-dir", "{work}/logs", *_recipe(sizes)],
            90,
            output_is_page=True,
        ),
        Step(
            "infer",
            [
                *("-m", "recipes.signlang", "infer", "--log-dir", "{work}/logs", "--device", sizes.device),
                *("--markdown", "{work}/inference.md", "--plot", "{work}/inference.png", *few),
            ],
            150,
            pages=["inference.md"],
            kept=["inference.png"],
        ),
        Step(
            "tune",
            [
                *("-m", "lightning_perf", "tune", *window, "--minutes", str(sizes.tune_minutes)),
                *("--markdown", "{work}/tune.md", f"recipes.signlang.tune:{sizes.tuned}"),
            ],
            240,
            pages=["tune.md"],
        ),
    ]


def compare(sizes: Sizes) -> list[Step]:
    """Return the one step of the recipe's comparison: three precisions, a warm-up block and three blocks."""
    command = ["-m", "recipes.signlang", "compare", "--runs", str(sizes.runs), "--out", "{work}/study"]
    return [
        Step(
            "compare",
            [*command, *_recipe(sizes)],
            STAGE_S,
            pages=["study/comparison.md"],
            raw=["study/comparison.json"],
        )
    ]


STAGES: Mapping[str, Callable[[Sizes], list[Step]]] = {
    "first": first,
    "table": table,
    "overhead": overhead,
    "planted": planted,
    "rest": rest,
    "compare": compare,
}


def run_stage(
    name: str, steps: Sequence[Step], out: Path, *, stage_s: float, patience: float = 1.0
) -> tuple[str, list[str]]:
    """Run the steps of a stage, and write the results of each one as soon as it has ended.

    Args:
        name: The stage.
        steps: Its steps.
        out: Folder of results.
        stage_s: Seconds for all of them.
        patience: Factor of all time limits.

    Returns:
        The stage's page in Markdown, and a line for each step that failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    page, raw, log = (out / f"{name}.{suffix}" for suffix in ("md", "jsonl", "log"))
    for path in (page, raw, log):
        path.write_text("", encoding="utf-8")
    deadline = time.monotonic() + patience * stage_s
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for step in steps:
            began = time.monotonic()
            code, output = _run(step, work, log, min(patience * step.limit_s, deadline - began))
            seconds = time.monotonic() - began
            sections = [(work / file).read_text(encoding="utf-8") for file in step.pages if (work / file).exists()]
            if step.output_is_page and code == 0:
                sections.append(f"```text\n{output.strip()[-6000:]}\n```\n")
            if code != 0:
                ended = "timed out" if code is None else f"exit code {code}"
                failed.append(f"{step.name}: {ended} after {seconds:.0f} s")
                sections.append(f"**{failed[-1]}**\n\n```text\n{output.strip()[-4000:]}\n```\n")
            with page.open("a", encoding="utf-8") as file:
                file.write(f"## {name}: {step.name} ({seconds:.0f} s)\n\n" + "\n".join(sections) + "\n")
            with raw.open("a", encoding="utf-8") as file:
                for source in step.raw:
                    file.writelines(_raw_lines(step.name, work / source))
            for kept in step.kept:
                if (work / kept).exists():
                    shutil.copy(work / kept, out / Path(kept).name)
    return page.read_text(encoding="utf-8"), failed


def _run(step: Step, work: Path, log: Path, limit_s: float) -> tuple[int | None, str]:
    """Run a step and return its exit code (none after a timeout) and its output."""
    if limit_s < 5:
        return None, "The stage had no time left."
    command = [sys.executable, *(part.format(work=work) for part in step.command)]
    environment = {**os.environ, "WORK": str(work), "PYTHONUNBUFFERED": "1", **(step.environment or {})}
    stop = threading.Event()
    timer = threading.Timer(limit_s, stop.set)
    timer.start()
    code: int | None
    with log.open("ab") as file:
        file.write(f"==== {step.name}: {' '.join(command)}\n".encode())
        file.flush()
        began = file.tell()
        try:
            # Straight into the log: it is kept even if all of this is killed.
            code = run_command(command, folder=str(ROOT), environment=environment, log=file, stop=stop)
        except StoppedError:
            code = None
        finally:
            timer.cancel()
    text = log.read_bytes()[began:].decode("utf-8", "replace")
    # A progress bar writes its line many times. Keep the last state.
    return code, re.sub(r"[^\n]*\r(?!\n)", "", text)


def _raw_lines(step: str, path: Path) -> list[str]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    values = [json.loads(line) for line in text.splitlines() if line] if path.suffix == ".jsonl" else [json.loads(text)]
    return [json.dumps({"step": step, **value}) + "\n" for value in values]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run stages and print their pages.

    Args:
        arguments: Command line; None for the process's own.

    Returns:
        The exit code: 0, 1 if a step failed, 2 without a GPU.
    """
    parser = make_parser(__doc__)
    parser.add_argument("stage", nargs="?", choices=[*STAGES, "all"], default="all", help="stage (default: all)")
    parser.add_argument("--out", type=Path, help="folder of results (default: benchmarks/results/gpu)")
    parser.add_argument("--only", metavar="STEP,...", help="run only these steps of the stage; `--list` shows them")
    parser.add_argument("--seconds", type=float, default=STAGE_S, help="time limit of a stage, in s (default: 480)")
    parser.add_argument("--list", action="store_true", help="list the stages and their steps")
    parser.add_argument("--tiny", action="store_true", help="run on a CPU, at sizes that only show that it works")
    options = parser.parse_args(arguments)
    sizes = TINY if options.tiny else ON_GPU
    if options.list:
        for name, make_steps in STAGES.items():
            print(f"{name}: {', '.join(step.name for step in make_steps(sizes))}")
        return 0
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(
            f"benchmarks.gpu: {sys.executable} lacks {', '.join(missing)}. Install them, or put unpacked wheels on "
            "PYTHONPATH where nothing can be installed.",
            file=sys.stderr,
        )
        return 2
    if not options.tiny and not _has_gpu():
        print("benchmarks.gpu: torch finds no CUDA GPU. Add --tiny to run it on the CPU.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        # Figures of a tiny run mean nothing: they never replace measured ones.
        out = options.out or (Path(scratch) if options.tiny else RESULTS)
        pages, failed = [], []
        for name in [*STAGES] if options.stage == "all" else [options.stage]:
            steps = STAGES[name](sizes)
            if options.only:
                chosen = options.only.split(",")
                if unknown := set(chosen) - {step.name for step in steps}:
                    parser.error(f"the stage {name} has no step {sorted(unknown)[0]!r}: --list shows them")
                steps = [step for step in steps if step.name in chosen]
            page, missed = run_stage(
                name, steps, out.resolve(), stage_s=options.seconds, patience=TINY_PATIENCE if options.tiny else 1.0
            )
            pages.append(page)
            failed += [f"{name}/{line}" for line in missed]
    print("\n".join(pages))
    print("\n".join(["failed:", *failed]) if failed else "every step finished")
    return 1 if failed else 0


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
