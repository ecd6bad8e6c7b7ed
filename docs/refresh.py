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


def refreshed(text: str) -> tuple[str, list[str]]:
    """Put the present output of every quoted command into a Markdown text.

    Returns:
        The text, and the commands that failed; their old output stays.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the commands of this environment
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PATH": path}
    failed: list[str] = []

    def run(match: re.Match[str]) -> str:
        print(f"$ {match['command']}", file=sys.stderr)
        shell = ["bash", "-euo", "pipefail", "-c", match["command"]]
        done = subprocess.run(shell, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            failed.append(match["command"])
            return match[0]
        body = "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())
        return f"{match[1]}{body}\n{match[3]}"

    return BLOCK.sub(run, text), failed


def main(paths: list[str]) -> int:
    """Refresh each of the files in place.

    Returns:
        The exit code: 1 when a command failed.
    """
    failed = []
    for name in paths:
        path = Path(name)
        before = path.read_text(encoding="utf-8")
        after, without = refreshed(before)
        failed += [f"{name}: not refreshed, it failed: {command}" for command in without]
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"refreshed {path}", file=sys.stderr)
    print(*failed, sep="\n", end="\n" if failed else "", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
