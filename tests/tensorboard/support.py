"""Log directories for the tests, and a client that asks the plugin through TensorBoard's own application."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from tensorboard.backend.application import TensorBoardWSGI
from tensorboard.plugins import base_plugin
from werkzeug.test import Client, TestResponse

from lightning_perf.compare.study.definition import Study, StudyArm
from lightning_perf.run_files.run_record import Place
from lightning_perf.tensorboard.discovery import Run, Scanner, Sniffer, discover, read_roots
from lightning_perf.tensorboard.documents import work
from lightning_perf.tensorboard.plugin import PerfPlugin
from lightning_perf.tensorboard.queue import Answer, Job, Queue, Task
from lightning_perf.tensorboard.routes import Routes
from lightning_perf.tensorboard.storage import StoredFile
from tests.compare.support import write_run
from tests.support.trace_builder import TraceBuilder

PREFIX = "/data/plugin/lightning_perf"


class InlineQueue(Queue):
    """Does each job at once, in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Task] = []
        self.said: list[Answer] = []

    def ask(self, job: Job) -> Answer:
        if isinstance(job, Task):
            self.asked.append(job)
        return work(job, self.said.append)


class StubQueue(Queue):
    """Always answers the same."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def ask(self, job: Job) -> Answer:
        return self.answer


class PluginUnderTest(PerfPlugin):
    """The plugin with a table that is always fresh and with the given queue."""

    def __init__(self, logdir: str | None, queue: Queue, logdir_spec: str | None = None, fresh_s: float = 0.0) -> None:
        super().__init__(base_plugin.TBContext(logdir=logdir, flags=SimpleNamespace(logdir_spec=logdir_spec)))
        self._scanner = Scanner(read_roots(logdir, logdir_spec), fresh_s, fresh_looks=0.0, patience_s=60.0)
        self._queue = queue

    def get_plugin_apps(self) -> Any:
        return Routes(self._scanner, self._queue).applications()


@dataclass
class Asker:
    """Asks the plugin."""

    client: Client
    queue: Queue

    def get(self, address: str, **arguments: Any) -> TestResponse:
        return self.client.get(f"{PREFIX}/{address}", query_string=arguments)

    def json(self, address: str, status: int = 200, **arguments: Any) -> Any:
        response = self.get(address, **arguments)
        assert response.status_code == status, response.text
        assert response.content_type == "application/json"
        return json.loads(response.data)

    def names(self) -> list[str]:
        return [run["name"] for run in self.json("data/runs")["runs"]]


def asker(
    logdir: Path | str | None, queue: Queue | None = None, logdir_spec: str | None = None, fresh_s: float = 0.0
) -> Asker:
    """A client for a log directory."""
    queue = queue or InlineQueue()
    plugin = PluginUnderTest(str(logdir) if logdir is not None else None, queue, logdir_spec, fresh_s)
    return Asker(Client(TensorBoardWSGI([plugin])), queue)


def run_of(logdir: Path, name: str = "fit") -> Run:
    """A run as the scanner finds it."""
    return discover(read_roots(str(logdir), None), Sniffer()).runs[name]


def write_trace(path: Path, *, kernel_us: int = 40, kernels: int = 1) -> Path:
    """A trace of two steps of 100 µs, each with kernels of known length."""
    builder = TraceBuilder().gpu("GPU")
    for step in range(2):
        begin = step * 100
        builder.step(step + 1, begin, 100)
        for number in range(kernels):
            issued = begin + 10 + 2 * number
            builder.op(f"aten::op{number}", issued, 2)
            builder.launch(
                f"kernel_{number:04}",
                call_us=issued,
                call_duration_us=1,
                start_us=issued + 1,
                duration_us=kernel_us,
                stream=number + 1,
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    return builder.write(path)


def stored(path: str, size_bytes: int = 10, updated_s: float = 100.0, version: str = "v1") -> StoredFile:
    """A listed file."""
    return StoredFile(path, size_bytes, updated_s, version)


def write_study(folder: Path, blocks: int = 3, **changes: Any) -> Path:
    """A finished study: the second arm is a fifth faster."""
    study = Study(
        arms=(StudyArm("fp32", ("x",)), StudyArm("amp", ("x",))), blocks=blocks, treatment=("precision",), study_id="s"
    )
    folder.mkdir(parents=True)
    (folder / "study.json").write_bytes(msgspec.json.encode(study))
    for block in range(blocks + 1):
        for position, (arm, step_ms, precision) in enumerate((("fp32", 10.0, "32-true"), ("amp", 8.0, "16-mixed"))):
            write_run(
                folder / "runs" / f"block{block:03}" / arm,
                step_ms=step_ms + 0.01 * block,
                started=10.0 * block + position,
                place=Place("s", arm, block, position, treatment=study.treatment),
                train__precision=precision,
                **(changes if arm == "amp" else {}),
            )
    return folder
