"""The addresses of the tab, their answers, and the assets of the page."""

from __future__ import annotations

import base64
import gzip
import hashlib
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import msgspec
from werkzeug.wrappers import Request, Response

from lightning_perf.documents import page_json
from lightning_perf.lazy_imports import install_command
from lightning_perf.page.html import plotly_file
from lightning_perf.tensorboard.cache import Document, RunSummaries, find, key_of, make_task, read_intact
from lightning_perf.tensorboard.discovery import Run, Scanner
from lightning_perf.tensorboard.queue import DiffQuery, Done, Failed, Queue, Working
from lightning_perf.tensorboard.storage import StorageError
from lightning_perf.view import (
    CONTENT_TYPES,
    Resource,
    ViewerError,
    find_resources,
    find_viewer,
    host_name,
    is_loopback,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


PAGE_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # charts use style attributes
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "frame-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
"""Content security policy: only the page's own scripts, and nothing from other hosts.

It does not restrict who may show the page in a frame, because notebooks and editors show TensorBoard in frames. No
click on the page changes anything.
"""

COMPRESSED_BYTES = 1000
_COMPRESSIBLE = ("text/", "application/json")
CHUNK_BYTES = 1 << 18

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class RefusalError(Exception):
    """A request that gets an error with an HTTP status and a message instead of data."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


HOSTS_VARIABLE = "LIGHTNING_PERF_HOSTS"
"""Environment variable with more names of this machine, joined by commas, that browsers may use for the tab."""


def is_trusted_host(request: Request) -> bool:
    """Return whether a request was addressed to a name of this machine. Its port does not matter.

    A website can point its own name at this machine, so that its pages could read the answers (DNS rebinding). Such a
    request carries that website's name in ``Host``. These requests are trusted:

    - addressed to localhost or to an IP address, which no website can own;
    - addressed to a name without dots, or to this machine's own name;
    - sent by a page with HTTPS, e.g. of a notebook service that forwards to TensorBoard. Browsers add
      ``Sec-Fetch-Site`` to those only (https://www.w3.org/TR/fetch-metadata/), and no script can set it.
    """
    name = host_name(request.environ.get("HTTP_HOST"))
    if not name:
        return False
    if is_loopback(name) or _is_address(name) or "." not in name or request.headers.get("Sec-Fetch-Site"):
        return True
    named = (host.strip().lower() for host in os.environ.get(HOSTS_VARIABLE, "").split(","))
    return name in named or name in own_names()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@cache
def own_names() -> frozenset[str]:
    """Return the names of this machine."""
    return frozenset(name.rstrip(".").lower() for name in (socket.gethostname(), socket.getfqdn()))


def get_only(answer: Callable[[Request], Response], *, any_host: bool = False) -> WSGIApplication:
    """Return a WSGI application that answers GET only, with errors as JSON.

    `any_host` allows requests to any host's name, for answers that are the same everywhere.
    """

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        try:
            if request.method != "GET":
                raise RefusalError(405, "This address accepts GET only.")
            if not (any_host or is_trusted_host(request)):
                name = host_name(request.environ.get("HTTP_HOST"))
                raise RefusalError(
                    403,
                    f"This address names the host {name!r}, which is not a known name of this machine. Open "
                    f"TensorBoard as localhost, or start it with {HOSTS_VARIABLE}={name or 'NAME'}.",
                )
            response = answer(request)
        except RefusalError as refusal:
            response = answer_json(request, {"state": "failed", "message": refusal.message}, refusal.status)
            if refusal.status == 405:
                response.headers["Allow"] = "GET"
        return response(environ, start_response)

    return application


def answer_json(request: Request, value: Any, status: int = 200) -> Response:
    """Answer with a value as JSON."""
    return answer_data(request, msgspec.json.encode(value), "application/json", status=status)


def answer_data(
    request: Request,
    data: bytes,
    content_type: str,
    *,
    status: int = 200,
    policy: str = PAGE_POLICY,
    fresh_s: int = 0,
) -> Response:
    """Answer with bytes, which a browser may use for `fresh_s` without asking again."""
    shrinks = len(data) >= COMPRESSED_BYTES and content_type.startswith(_COMPRESSIBLE)
    if shrinks and request.accept_encodings.quality("gzip") > 0:
        response = Response(gzip.compress(data, 3, mtime=0), status, {"Content-Encoding": "gzip"})
    else:
        response = Response(data, status)
    response.headers.extend({**_HEADERS, "Content-Security-Policy": policy, "Vary": "Accept-Encoding"})
    response.content_type = content_type
    if fresh_s:
        response.headers["Cache-Control"] = f"private, max-age={fresh_s}"
    return response


def answer_stream(stream: BinaryIO, name: str) -> Response:
    """Answer with the contents of a file, in parts, and close it. Bytes added during the answer are left out."""
    size_bytes = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    response = Response(
        _parts(stream, size_bytes),
        headers={**_HEADERS, "Content-Security-Policy": PAGE_POLICY},
        direct_passthrough=True,
    )
    response.content_type = "application/octet-stream"
    response.content_length = size_bytes
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name, safe='')}"  # RFC 6266
    response.call_on_close(stream.close)  # if the reader disconnects early
    return response


def _parts(stream: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    with stream:
        while part := stream.read(min(CHUNK_BYTES, size_bytes)):
            size_bytes -= len(part)
            yield part


CHARTS = "plotly.min.js"

FRESH_S = 3600
"""For files of other packages, which are large and change only with their packages."""


@cache
def page_assets() -> Mapping[str, Resource]:
    """Return the page's own files by their addresses below ``static/``, with plotly.js if it is installed."""
    charts = plotly_file()
    own = find_resources(Path(str(resources.files("lightning_perf.page"))) / "assets")
    return own if charts is None else {**own, CHARTS: Resource(charts, CONTENT_TYPES[".js"])}


@cache
def perfetto_assets() -> Mapping[str, Resource]:
    """Return the files of Perfetto's UI by their addresses below ``perfetto/``; empty if it is not installed."""
    try:
        return find_resources(find_viewer())
    except ViewerError:
        return {}


@cache
def perfetto_policy() -> str:
    """Return a policy for Perfetto's files: its one inline script by hash, WebAssembly, and this host only.

    A worker uses the policy of its script, so every file has it. ``wasm-unsafe-eval`` would be enough for WebAssembly,
    but TensorBoard calls every policy with it illegal.
    """
    page = perfetto_assets()["index.html"].path.read_text(encoding="utf-8")
    scripts = re.findall(r"<script\b[^>]*>(.+?)</script>", page, re.DOTALL)
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = "".join(f" 'sha256-{digest}'" for digest in hashes)
    return PAGE_POLICY.replace("script-src 'self'", f"script-src 'self' 'unsafe-eval'{allowed}")


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
            headers = {**_HEADERS, "Content-Security-Policy": PAGE_POLICY, "Location": "index.html?testing=1"}
            response = Response(status=302, headers=headers, content_type="text/plain; charset=utf-8")
            response.autocorrect_location_header = False
            return response
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
        for _ in range(MOST_DAMAGED):
            made = [self._make(run, "report") for run in runs]
            working = [state for state in made if isinstance(state, Working)]
            if working:
                done = sum(state.done if isinstance(state, Working) else 1.0 for state in made) / len(made)
                return _progress(request, Working(done, working[0].message))
            answer = self._queue.ask(DiffQuery(*map(str, made)))
            if isinstance(answer, Working):
                return _progress(request, answer)
            if isinstance(answer, Done):
                return answer_data(request, answer.data, "application/json")
            failed = answer
            if all(isinstance(path, Path) and path.exists() for path in made):
                break  # otherwise a report was damaged and is removed, so make it again
        raise RefusalError(failed.status, failed.message)

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
