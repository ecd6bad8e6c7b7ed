"""A client of the MCP server without a language model, for `benchmarks.agents.evaluation`. Replace it with your agent.

It reads a question from standard input, starts ``lightning-perf mcp`` on the folder of the question, calls one tool,
and prints the answer.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio
import mcp


async def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Answer a question with one call of a tool, and further ones for the rest of a cut answer."""
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "lightning_perf", "mcp", "--folder", question["folder"]],
        env=dict(os.environ),
    )
    async with mcp.Client(mcp.stdio_client(server)) as client:
        if question["kind"] == "comparison":
            arms = {name: [folder] for name, folder in question["arms"].items()}
            return {"outcome": (await _call(client, "compare", arms=arms, treatment=question["treatment"]))["outcome"]}
        found = await _call(client, "analyze", path=question["folder"])
        if found["outcome"] == "error":
            raise SystemExit(found["message"])
        rows = found["findings"]
        if isinstance(rows, dict):
            page = rows
            rows = rows["items"]
            while "more" in page:
                page = await _call(client, "more", handle=page["more"])
                rows += page["value"]
        return {"findings": [row["rule"] for row in rows]}


async def _call(client: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    decoded: dict[str, Any] = json.loads(result.content[0].text)
    return decoded


def main() -> int:
    """Answer the question on standard input."""
    print(json.dumps(anyio.run(answer, json.loads(sys.stdin.read()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
