"""A server of the page, inside the browser: it sends the answers that a test has prepared."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lightning_perf.page import html

ASSETS = Path(html.__file__).parent / "assets"
ORIGIN = "http://perf.test/data/plugin/lightning_perf/"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json"}
POLICY = "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:"


class Server:
    """Answers the page's requests inside the browser; `answers` are lists of (status, JSON), the last one stays."""

    def __init__(self, browser: Any) -> None:
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.faults: list[str] = []
        self.page = browser.new_page()
        self.page.set_default_timeout(20_000)
        self.page.clock.install()
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.route("**/*", self.answer)

    def answer(self, route: Any) -> None:
        address = route.request.url
        if not address.startswith(ORIGIN):
            self.faults.append(f"a request to {address}")
            route.abort()
            return
        path = urlsplit(address).path.removeprefix(urlsplit(ORIGIN).path)
        if path.startswith("data/"):
            query = {key: values[0] for key, values in parse_qs(urlsplit(address).query).items()}
            self.asked.append((path, query))
            waiting = self.answers[f"{path} {query.get('run', '')}".strip()]
            status, body = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            route.fulfill(status=status, json=body)
            return
        file = ASSETS / path.removeprefix("static/")
        if not file.is_file():
            route.fulfill(status=404, body="")
            return
        route.fulfill(
            body=file.read_text(), content_type=TYPES[file.suffix], headers={"Content-Security-Policy": POLICY}
        )

    def runs(self, *runs: tuple[str, float], notes: tuple[str, ...] = ()) -> None:
        listed = [{"name": name, "kind": "run", "updated_s": updated, "files": 2} for name, updated in runs]
        self.answers["data/runs"] = [(200, {"runs": listed, "notes": list(notes)})]

    def open(self, state: str = "") -> None:
        self.page.goto(f"{ORIGIN}index.html{state}")
        self.page.wait_for_selector("main h1")

    def choose(self, run: str) -> None:
        """Choose another run from the list."""
        self.page.click("#run")
        self.page.click(f'[data-run="{run}"]')
