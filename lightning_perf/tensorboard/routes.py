"""The addresses of the tab and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from werkzeug.wrappers import Request, Response

from lightning_perf.documents import page_json
from lightning_perf.lazy_imports import install_command
from lightning_perf.page.html import plotly_file
from lightning_perf.tensorboard.cache import Document, RunSummaries, find, key_of, make_task, read_intact
from lightning_perf.tensorboard.discovery import Run, Scanner
from lightning_perf.tensorboard.jobs import DiffQuery, Failed, Working
from lightning_perf.tensorboard.queue import Queue
from lightning_perf.tensorboard.responses import (
    CHARTS,
    FRESH_S,
    RefusalError,
    answer_data,
    answer_json,
    answer_redirect,
    answer_stream,
    get_only,
    page_assets,
    perfetto_assets,
    perfetto_policy,
)
from lightning_perf.tensorboard.storage import StorageError
from lightning_perf.view import Resource

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

ENTRY = "/index.js"
"""The module that TensorBoard's frontend loads into the tab's frame. It opens the page, which has its own policy."""

_ENTRY_TEXT = b'export function render() {\n  location.replace(new URL("index.html", import.meta.url));\n}\n'

WAIT_S = 20.0
"""How long a request waits for the table of runs. Remote folders may be slow."""

LARGEST_TRADEOFF_BYTES = 16 << 20

MOST_DAMAGED = 4
"""A request finds at most this many damaged documents: one in each folder of the cache, and a new one."""


class Routes:
    """Answers the tab's requests about the runs that a scanner finds, with the documents of a queue."""

    def __init__(self, scanner: Scanner, queue: Queue) -> None:
        self._scanner = scanner
        self._queue = queue
        self._summaries = RunSummaries()

    def applications(self) -> Mapping[str, WSGIApplication]:
        """Return the WSGI application of each address. ``/*`` matches any rest of the address."""
        answers = {
            ENTRY: self.entry,
            "/index.html": self.page,
            "/static/*": self.static,
            "/perfetto/*": self.perfetto,
            "/trace": self.trace,
            "/data/runs": self.runs,
            "/data/report": self.report,
            "/data/diff": self.diff,
            "/data/study": self.study,
            "/data/tradeoff": self.tradeoff,
        }
        # The entry holds no data. It leads to the page, which then shows why a host's name is refused.
        return {route: get_only(answer, any_host=route == ENTRY) for route, answer in answers.items()}

    def entry(self, request: Request) -> Response:
        """Answer with the module that TensorBoard loads."""
        return answer_data(request, _ENTRY_TEXT, "text/javascript; charset=utf-8")

    def page(self, request: Request) -> Response:
        """Answer with the page. The browser asks for all modules at once, and not as one imports the other."""
        assets = page_assets()
        if "index.html" not in assets:
            raise RefusalError(404, "The page is missing from this installation.")
        names = sorted(name for name in assets if name.endswith(".js") and name != "plotly.min.js")
        links = "".join(f'<link rel="modulepreload" href="static/{name}" />\n' for name in names)
        page = assets["index.html"].path.read_text(encoding="utf-8").replace("</head>", f"{links}</head>")
        return answer_data(request, page.encode(), assets["index.html"].content_type)

    def static(self, request: Request) -> Response:
        """Answer with a file of the page."""
        name = _rest(request, "/static/")
        hint = "" if plotly_file() else f" Charts need plotly. Install it with: {install_command('view')}"
        fresh_s = FRESH_S if name == CHARTS else 0
        return _file(request, page_assets(), name, f"This file does not exist.{hint}", fresh_s=fresh_s)

    def perfetto(self, request: Request) -> Response:
        """Answer with a file of Perfetto's UI."""
        name = _rest(request, "/perfetto/")
        if name == "index.html" and "testing" not in request.args:
            # Without this it contacts its developers' server and an analytics service. The browser keeps the fragment.
            return answer_redirect("index.html?testing=1")
        if not perfetto_assets():
            reason = "This file does not exist. The timeline needs Perfetto's UI."
            raise RefusalError(404, f"{reason} Install it with: {install_command('view')}")
        fresh_s = FRESH_S if "/" in name else 0  # these are in a folder named by their version
        missing = "This file does not exist."
        return _file(request, perfetto_assets(), name, missing, policy=perfetto_policy(), fresh_s=fresh_s)

    def runs(self, request: Request) -> Response:
        """Answer with the list of runs."""
        table = self._scanner.table(WAIT_S)
        if table is None:
            return answer_json(request, {"runs": [], "notes": ["Still looking for runs …"]})
        rows = [
            {
                "name": run.name,
                "title": run.title,
                "kind": run.kind,
                "updated_s": run.updated_s,
                "files": len(run.traces),
                "traces": [file.name for file in run.traces],
                "study": run.study,
                **msgspec.structs.asdict(self._summaries.of(run)),
            }
            for run in table.runs.values()
        ]
        notes = list(table.notes)
        if plotly_file() is None:
            notes.append(f"Charts need plotly: {install_command('view')}")
        if not perfetto_assets():
            notes.append(f"The timeline needs Perfetto's UI: {install_command('view')}")
        return answer_json(request, {"runs": rows, "notes": notes})

    def report(self, request: Request) -> Response:
        """Answer with the report of a run."""
        run = self._run(request, "run", "run", "trace")
        return self._document(request, run, "page")

    def study(self, request: Request) -> Response:
        """Answer with the comparison of a study's arms."""
        return self._document(request, self._run(request, "run", "study"), "study")

    def tradeoff(self, request: Request) -> Response:
        """Answer with a trade-off table."""
        from lightning_perf.inference.errors import InferenceError
        from lightning_perf.inference.results.tradeoff import Tradeoff

        run = self._run(request, "run", "inference")
        (file,) = run.others
        if file.size_bytes > LARGEST_TRADEOFF_BYTES:
            raise RefusalError(422, f"{file.path} is larger than the limit of {LARGEST_TRADEOFF_BYTES >> 20} MB.")
        try:
            with run.storage.open(file.path) as stream:
                data = stream.read(LARGEST_TRADEOFF_BYTES)
            tradeoff = Tradeoff.from_json(data)
        except (StorageError, OSError) as error:
            raise RefusalError(422, str(error)) from error
        except InferenceError as error:
            raise RefusalError(422, f"{file.path} cannot be shown: {error}.") from error
        return answer_data(request, page_json(tradeoff), "application/json")

    def diff(self, request: Request) -> Response:
        """Answer with the changes from one run to another."""
        runs = [self._run(request, argument, "run", "trace") for argument in ("run", "other")]
        made = [self._make(run, "report") for run in runs]
        working = [state for state in made if isinstance(state, Working)]
        if working:
            done = sum(state.done if isinstance(state, Working) else 1.0 for state in made) / len(made)
            return _progress(request, Working(done, working[0].message))
        answer = self._queue.ask(DiffQuery(*map(str, made)))
        if isinstance(answer, Working):
            return _progress(request, answer)
        if isinstance(answer, Failed):
            raise RefusalError(answer.status, answer.message)
        return answer_data(request, answer.data, "application/json")

    def trace(self, request: Request) -> Response:
        """Answer with a trace file, unchanged."""
        run = self._run(request, "run", "run", "trace")
        number = _number(request, "file", 0)
        if number >= len(run.traces):
            raise RefusalError(404, f"The run has {len(run.traces)} traces. Their numbers start at 0.")
        file = run.traces[number]
        try:
            return answer_stream(run.storage.open(file.path), file.name)
        except StorageError as error:
            raise RefusalError(404, str(error)) from error

    def _run(self, request: Request, argument: str, *kinds: str) -> Run:
        """Return the run that an argument names. It is looked up among the known runs, and never used as a path."""
        name = request.args.get(argument)
        if not name:
            raise RefusalError(400, f'The argument "{argument}" must name a run.')
        table = self._scanner.table(WAIT_S)
        run = table.runs.get(name) if table is not None else None
        if run is None or run.kind not in kinds:
            raise RefusalError(404, f"No {' or '.join(kinds)} has this name (any more).")
        return run

    def _document(self, request: Request, run: Run, document: Document) -> Response:
        for _ in range(MOST_DAMAGED):
            made = self._make(run, document)
            if isinstance(made, Working):
                return _progress(request, made)
            data = read_intact(made, document)
            if data is not None:
                return answer_data(request, data, "application/json")
        raise RefusalError(500, f"The cached document {made} is damaged again and again. Check the disk.")

    def _make(self, run: Run, document: Document) -> Path | Working:
        """Return the finished document, or its progress, or raise a `RefusalError` if it cannot be made."""
        key = key_of(run)
        for _ in range(2):  # the queue may remember a document that is damaged or gone by now, once
            found = find(run, key, document)
            if found is not None:
                return found
            answer = self._queue.ask(make_task(run, key))
            if isinstance(answer, Working):
                return answer
            if isinstance(answer, Failed):
                raise RefusalError(answer.status, answer.message)
        found = find(run, key, document)
        if found is None:
            message = "The result was removed as soon as it was made. Does another program clean the cache?"
            raise RefusalError(422, message)
        return found


def _file(request: Request, files: Mapping[str, Resource], name: str, missing: str, **options: Any) -> Response:
    try:
        file = files[name]
        data = file.path.read_bytes()
    except (KeyError, OSError) as error:
        raise RefusalError(404, missing) from error
    return answer_data(request, data, file.content_type, **options)


def _progress(request: Request, working: Working) -> Response:
    return answer_json(request, {"state": "working", "done": working.done, "message": working.message}, 202)


def _rest(request: Request, prefix: str) -> str:
    return request.path.partition(prefix)[2]


def _number(request: Request, argument: str, otherwise: int) -> int:
    text = request.args.get(argument)
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RefusalError(400, f'The argument "{argument}" must be a whole number, 0 or larger.')
    return int(text)
