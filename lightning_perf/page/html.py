"""Write a document as one self-contained HTML file with its style, modules and charts. The file fetches nothing."""

from __future__ import annotations

import base64
import gzip
import html
import importlib.util
import json
import os
import posixpath
import re
import secrets
import sys
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import IO, Literal

from lightning_perf.errors import UserError
from lightning_perf.run_files.atomic import write_named_file

Kind = Literal["run", "trace", "diff", "study", "inference", "history", "snapshot", "snapshot-diff"]


class PageError(UserError):
    """The page cannot be written. The message says how to fix that."""


_ASSETS = resources.files("lightning_perf.page").joinpath("assets")
_DEFINITIONS = "text/definitions.json"
_MAIN = "app/main.js"
_IMPORT = re.compile(r'(?<=from ")\.{1,2}/(?P<path>[\w./-]+\.js)(?=";)')
_STYLESHEET = re.compile(r' *<link rel="stylesheet" href="static/(?P<name>[\w./-]+)" />\n')
_BLOCK_COMMENT = re.compile(r"^ */\*.*?\*/ *$", re.DOTALL | re.MULTILINE)
_MODULE = f'<script type="module" src="static/{_MAIN}"></script>'

# Unpacks the modules, gives each an address in an import map, and starts the first. Packed, they take a quarter of the
# room. A module that is imported by an allowed one needs no nonce of its own.
_START = f"""
{{
  const nonce = document.currentScript.nonce;
  const add = (type, text) => {{
    const script = document.createElement("script");
    Object.assign(script, {{ type, nonce, textContent: text }});
    document.body.append(script);
  }};
  const packed = Uint8Array.from(atob(document.getElementById("modules").textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Response(stream).json().then((modules) => {{
    const address = (source) => `data:text/javascript;charset=utf-8,${{encodeURIComponent(source)}}`;
    const imports = Object.fromEntries(Object.entries(modules).map(([name, source]) => [name, address(source)]));
    add("importmap", JSON.stringify({{ imports }}));
    add("module", 'import "page/{_MAIN}";');
  }});
}}
"""

# Everything is in the file. Plotly's own style element needs 'unsafe-inline' for styles.
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


def render_html(document_json: bytes, kind: Kind, title: str) -> bytes:
    """Put a document into a page that opens from disk, offline.

    The page has charts if the package ``plotly`` is installed (the extra ``view``). Without it the page says so, and
    its tables have every figure.

    Args:
        document_json: A ``PerfReport``, ``Compared``, ``Comparison``, ``Unfair``, ``Tradeoff``, ``MemoryReport`` or
            ``MemoryDiff`` as JSON, from
            `documents.page_json`. Its text is not trusted.
    """
    nonce = secrets.token_urlsafe(16)
    style = "\n".join(_without_comments(_read(name)) for name in _STYLESHEET.findall(_read("index.html")))
    page = _STYLESHEET.sub("", _read("index.html"))
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY.format(nonce=nonce))}">\n'
        f"<title>{html.escape(title)} – lightning_perf</title>\n<style>\n{style}</style>"
    )
    page = page.replace("<title>lightning_perf</title>", head)
    body = [
        _data_block("document", document_json.decode(), f' data-name="{html.escape(title)}" data-kind="{kind}"'),
        _data_block(f"asset-{_DEFINITIONS}", json.dumps(json.loads(_read(_DEFINITIONS)), separators=(",", ":"))),
        f'<script type="text/plain" id="modules">{_packed_modules()}</script>',
        f'<script nonce="{nonce}">{_START}</script>',
    ]
    charts = _plotly()
    if charts is not None:
        # After the modules, so that they do not wait for it. It is unpacked when the first chart comes into sight.
        size, text = charts
        body.append(f'<script type="text/plain" id="plotly" data-bytes="{size}">{text}</script>')
    return page.replace(_MODULE, "\n".join(body)).encode(errors="replace")


def write_html(document_json: bytes, kind: Kind, title: str, path: Path) -> None:
    """Write a document as a page. The arguments are those of `render_html`."""
    try:
        write_named_file(path, render_html(document_json, kind, title))
    except OSError as error:
        raise PageError(
            f"Cannot write {path} ({error.strerror}). Choose a file in a folder that you can write to."
        ) from error


def _data_block(identity: str, json_text: str, attributes: str = "") -> str:
    """Return JSON as an element, escaped so that nothing in it ends the element or starts a comment."""
    escaped = json_text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{identity}"{attributes}>{escaped}</script>'


@lru_cache(maxsize=1)
def _packed_modules() -> str:
    """Return the page's modules as JSON, ``{name in the import map: source}``, in gzip and base64."""
    modules: dict[str, str] = {}
    waiting = [_MAIN]
    while waiting:
        path = waiting.pop()
        if _name(path) in modules:
            continue
        modules[_name(path)], imported = _bind(path)
        waiting += imported
    packed = gzip.compress(json.dumps(modules, sort_keys=True).encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode()


def _bind(path: str) -> tuple[str, list[str]]:
    """Return a module with imports by name, and the paths of its imports: relative paths need a real address."""
    imported: list[str] = []

    def rename(match: re.Match[str]) -> str:
        imported.append(posixpath.normpath(posixpath.join(posixpath.dirname(path), match.group())))
        return _name(imported[-1])

    return _IMPORT.sub(rename, _without_comments(_read(path))), imported


def _without_comments(source: str) -> str:
    """Remove indentation, empty lines and whole-line comments from a module or style sheet: a fifth of its size."""
    lines = (line.strip() for line in _BLOCK_COMMENT.sub("", source).splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("// "))


def _name(path: str) -> str:
    return f"page/{path}"


def _read(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


def plotly_file() -> Path | None:
    """Return plotly.js of the installed ``plotly`` package without importing it, or None."""
    spec = importlib.util.find_spec("plotly")
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    files = (Path(folder) / "package_data" / "plotly.min.js" for folder in folders)
    return next((file for file in files if file.is_file()), None)


@lru_cache(maxsize=1)
def _plotly() -> tuple[int, str] | None:
    """Return the size of Plotly's packed script, and its text; or ``None`` if it is not installed."""
    script = plotly_file()
    if script is None:
        return None
    packed = gzip.compress(script.read_bytes(), compresslevel=9, mtime=0)
    # A fifth of base 64's overhead less. "<" would have to be escaped, so a comma takes its place.
    return len(packed), base64.b85encode(packed, pad=True).replace(b"<", b",").decode()


def has_browser(terminal: IO[str]) -> bool:
    """Return whether a page can open in a window of its own.

    Without a display, Python would start a text browser in the user's terminal. A pipe has no user who looks.
    """
    if not terminal.isatty():
        return False
    if sys.platform in ("darwin", "win32") or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
