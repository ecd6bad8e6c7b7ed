"""Fixtures that every test may use."""

import gc
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.compare.records import fingerprint
from lightning_perf.run_files.user_cache import CACHE_VARIABLE, OFF
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace

ON_GPU_VARIABLE = "LIGHTNING_PERF_TEST_ON_GPU"
GPUS_VARIABLE = "LIGHTNING_PERF_TEST_GPUS"
"""What ``CUDA_VISIBLE_DEVICES`` was, also for the worker processes of pytest, which find it changed."""
ALL_GPUS = "all"

if not os.environ.get(ON_GPU_VARIABLE):
    # Before anything asks CUDA, and for every process that a test starts: what tests expect is a processor's, and a
    # Trainer left to itself would take all GPUs of the machine.
    os.environ.setdefault(GPUS_VARIABLE, os.environ.get("CUDA_VISIBLE_DEVICES", ALL_GPUS))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Most of the tests' time is that of processes which import Lightning.
LEAN = str(Path(__file__).parent / "support" / "lean")
if LEAN not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [LEAN, os.environ.get("PYTHONPATH")]))

# No test reads or writes the columns in the user's own cache folder. Programs that a test starts do not, either.
os.environ[CACHE_VARIABLE] = OFF

# Inductor may use what the processor has, instead of compiling and loading a program for each instruction set first.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # No time decides a test: on a busy machine, an example may take longer than Hypothesis's 200 ms.
    settings.register_profile("tests", deadline=None)
    settings.load_profile("tests")

CORPUS_VARIABLE = "LIGHTNING_PERF_CORPUS"


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the last resort of a hash must not decide a test."""
    monkeypatch.setattr(fingerprint, "CPU_LIMIT_S", 60.0)
    monkeypatch.setattr(fingerprint, "WALL_LIMIT_S", 60.0)


def corpus_folder() -> Path | None:
    """The folder of real traces and images, or None when the environment does not name one."""
    named = os.environ.get(CORPUS_VARIABLE)
    return Path(named) if named and (Path(named) / "traces").is_dir() else None


def corpus_rows() -> list[dict[str, Any]]:
    """The rows of the corpus's reference readings; empty without them (for ``parametrize``)."""
    folder = corpus_folder()
    readings = folder / "traces" / "reference.json" if folder else None
    rows = json.loads(readings.read_text()) if readings is not None and readings.is_file() else []
    return [row for row in rows if isinstance(row, dict)]


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder that holds ``traces/`` and ``data/``; skips the test when there is none."""
    folder = corpus_folder()
    if folder is None:
        pytest.skip(f"needs the real traces: set {CORPUS_VARIABLE} to the folder that holds traces/ and data/")
    return folder


@pytest.fixture(scope="session")
def reference(corpus: Path) -> list[dict[str, Any]]:
    """The independent readings of the corpus's traces, a row a file; skips the test when there are none."""
    rows = corpus_rows()
    if not rows:
        pytest.skip(f"needs the independent readings: {corpus / 'traces' / 'reference.json'}, see docs/corpus.md")
    return rows


@pytest.fixture(scope="session", params=corpus_rows(), ids=lambda row: row["file"])
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A row of the reference readings; the test runs once per trace of the corpus."""
    described: dict[str, Any] = request.param
    return described


@pytest.fixture(scope="session")
def trace(corpus: Path, row: dict[str, Any]) -> Trace:
    """The trace of the corpus that `row` describes. All tests of one trace run one after the other."""
    return read_trace(corpus / "traces" / row["file"])


@pytest.fixture(scope="session")
def gpu_environment() -> dict[str, str]:
    """The environment of a process that may use this machine's GPUs; skips the test where there is none."""
    environment = {**os.environ, ON_GPU_VARIABLE: "1", "CUDA_VISIBLE_DEVICES": os.environ[GPUS_VARIABLE]}
    if environment["CUDA_VISIBLE_DEVICES"] == ALL_GPUS:
        del environment["CUDA_VISIBLE_DEVICES"]
    ask = [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    # Torch takes seconds to ask: where the driver's own tool is missing, there is nothing to ask for.
    if shutil.which("nvidia-smi") is None or subprocess.run(ask, env=environment, check=False).returncode:
        pytest.skip("needs a CUDA GPU")
    return environment


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless browser, one a session: Playwright's blocking interface runs once a thread."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("needs playwright: pip install playwright")
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        running = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(autouse=True)
def seeds_of_lightning_stay_in_their_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """``seed_everything`` leaves its seed in the environment: the next test's trainings would start from it."""
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "")  # so that it is put back, or removed, after the test
        monkeypatch.delenv(name)


@pytest.hookimpl(trylast=True)  # pytest's own order keeps the tests of a fixture together
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests, so that none of them runs alone at the end.

    pytest-xdist gives each worker an equal slice of the list: each begins with some of these files.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    files = {path: [item for item in items if item.path == path] for path in sorted(slow)}
    others = iter([item for item in items if item.path not in slow])
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    first = [[item for path in list(files)[worker::workers] for item in files[path]] for worker in range(workers)]
    ordered: list[pytest.Item] = []
    for worker, own in enumerate(first):
        size = (len(items) - len(ordered)) // (workers - worker)
        ordered += [*own, *islice(others, max(size - len(own), 0))]
    items[:] = [*ordered, *others]


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at the objects of libraries and of thousands of tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs that tests start: a shell's background job is started with it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
