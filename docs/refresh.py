"""Puts the present output of commands into the Markdown files that quote it.

A fenced block that follows ``<!-- output of: COMMAND -->`` is replaced by what COMMAND prints, run by bash at the root
of the repository. Run it as ``python docs/refresh.py README.md docs/*.md``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- output of: (?P<command>.+?) -->\n```\w*\n).*?^(```)", re.DOTALL | re.MULTILINE)


def refreshed(text: str) -> str:
    """Return the Markdown text with every quoted output replaced by what its command prints now.

    Raises:
        subprocess.CalledProcessError: A command failed.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the commands of this environment
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PATH": path}

    def run(match: re.Match[str]) -> str:
        print(f"$ {match['command']}", file=sys.stderr)
        output = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", match["command"]],
            cwd=ROOT,
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        body = "\n".join(line.rstrip() for line in output.strip("\n").splitlines())
        return f"{match[1]}{body}\n{match[3]}"

    return BLOCK.sub(run, text)


def main(paths: list[str]) -> None:
    """Refresh each of the files in place."""
    for name in paths:
        path = Path(name)
        before = path.read_text(encoding="utf-8")
        after = refreshed(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"refreshed {path}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
