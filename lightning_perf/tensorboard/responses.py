"""HTTP responses of the plugin, and the assets of the page."""

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

from lightning_perf.page.html import plotly_file
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


def answer_redirect(address: str) -> Response:
    """Redirect to another address, relative to the requested one."""
    response = Response(status=302, headers={**_HEADERS, "Content-Security-Policy": PAGE_POLICY, "Location": address})
    response.content_type = "text/plain; charset=utf-8"
    response.autocorrect_location_header = False
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
