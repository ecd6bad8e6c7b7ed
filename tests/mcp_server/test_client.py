"""The official client lists and calls every tool over standard input and output."""

import json
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import lightning_perf
from lightning_perf.cli import main
from lightning_perf.mcp_server import server
from lightning_perf.mcp_server.server import LIMIT_BYTES
from lightning_perf.mcp_server.tools import TOOLS
from tests.support.absent_packages import without

DEMO = Path(lightning_perf.__file__).parent / "demo" / "recordings"
ROOT = Path(lightning_perf.__file__).parents[1]

CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "list_runs": ({}, "listed"),
    "analyze": ({"path": "before"}, "findings"),
    "diff": ({"before": "before", "after": "after"}, "faster"),
    "compare": ({"arms": {"a": ["before"], "b": ["after"]}}, "error"),
    "history": ({"store": "before"}, "error"),
    "explain": ({"rule": "input-bound"}, "explained"),
    "explain_nan": ({"path": "before"}, "error"),
    "estimates": ({}, "no_estimates"),
    "probe": ({"path": "before"}, "refused"),
    "tune": ({"training": "mine:make"}, "refused"),
    "data": ({"source": "mine:make"}, "refused"),
    "more": ({"handle": "a2:0:/findings/0/evidence"}, "page"),
}
"""Arguments of a call of each tool, and its outcome. The demo has no run records, history or precision.json."""


def run(use: Callable[[], Awaitable[None]]) -> None:
    """Run in a thread of its own: the browser that other tests use has an event loop in this one."""
    import anyio

    with ThreadPoolExecutor(1) as pool:
        pool.submit(anyio.run, use).result()


def with_client(action: Callable[[Any], Awaitable[None]], *options: str) -> None:
    """Start the server as a client does, and use it."""
    mcp = pytest.importorskip("mcp", reason="needs the extra mcp")
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "lightning_perf", "mcp", *options], env={"PYTHONPATH": str(ROOT)}
    )

    async def use() -> None:
        async with mcp.Client(mcp.stdio_client(command)) as client:
            await action(client)

    run(use)


def test_every_tool_over_stdio() -> None:
    async def use(client: Any) -> None:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == list(TOOLS) == list(CALLS)
        assert len(json.dumps([tool.model_dump(mode="json") for tool in listed])) < 2 * LIMIT_BYTES
        for tool in listed:
            arguments, outcome = CALLS[tool.name]
            assert tool.annotations.read_only_hint == (tool.name not in ("probe", "tune", "data"))
            jsonschema.validate(arguments, tool.input_schema)
            for name in tool.input_schema["properties"]:
                assert tool.input_schema["properties"][name]["description"]
            called = await client.call_tool(tool.name, arguments)
            (content,) = called.content
            answer = json.loads(content.text)
            assert len(content.text.encode()) <= LIMIT_BYTES
            assert (answer["tool"], answer["outcome"]) == (tool.name, outcome), answer
            assert called.is_error == (outcome == "error")
        assert "no_finding, inconclusive, refused" in client.instructions

    with_client(use, "--folder", str(DEMO))


def test_a_client_hears_of_a_call_that_still_runs() -> None:
    mcp = pytest.importorskip("mcp", reason="needs the extra mcp")
    heard = threading.Event()

    class Waiting(server.ToolServer):
        def call(self, name: str, arguments: Any = None, is_wanted: Any = None) -> dict[str, Any]:
            return {"tool": name, "outcome": "heard" if heard.wait(20) else "error"}

    async def use() -> None:
        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            assert message is not None
            assert message.startswith("tune has run for ")
            heard.set()

        async with mcp.Client(server.make_server(Waiting([DEMO]), progress_s=0.01)) as client:
            called = await client.call_tool("tune", {}, progress_callback=on_progress)
            assert json.loads(called.content[0].text)["outcome"] == "heard"

    run(use)


def test_the_command_needs_a_folder_and_its_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--folder", str(tmp_path / "absent")]) == 2
    assert "absent: no such folder. Give the folder of your runs." in capsys.readouterr().err


def test_a_missing_package_is_named() -> None:
    import subprocess

    code = without({"mcp", "anyio"}, "from lightning_perf.cli import main\nraise SystemExit(main(['mcp']))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert 'mcp is not installed. Install it with: pip install "lightning-perf[mcp]' in done.stderr
