"""Update the outputs of commands that Markdown files quote.

A fenced block after ``<!-- output of: COMMAND -->`` is replaced by the output of COMMAND. Bash runs the command at the
root of the repository. Run it as ``python docs/refresh.py README.md docs/*.md``.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- output of: (?P<command>.+?) -->\n```\w*\n).*?^(```)", re.DOTALL | re.MULTILINE)


def output(command: str) -> str | None:
    """Run a command with the programs of this environment, in a terminal of 100 columns.

    Several blocks may quote parts of one output, each after a pipe of its own. The command before it runs once.

    Returns:
        Its output as the docs quote it, or None if it failed.
    """
    first, _, rest = command.partition(" | ")
    if "&&" in first:  # only the last of these commands goes into the pipe
        first, rest = command, ""
    printed = _printed(first, None)
    if rest and printed is not None:
        printed = _printed(rest, printed)
    return None if printed is None else "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())


@functools.cache
def _printed(command: str, given: str | None) -> str | None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PATH": path}
    shell = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(shell, cwd=ROOT, env=environment, input=given, stdout=subprocess.PIPE, text=True, check=False)
    return None if done.returncode else done.stdout


def refreshed(text: str) -> tuple[str, list[str]]:
    """Update the output of every quoted command in a Markdown text.

    Returns:
        The text, and the commands that failed. Their old output stays.
    """
    failed: list[str] = []

    def run(match: re.Match[str]) -> str:
        print(f"$ {match['command']}", file=sys.stderr)
        body = output(match["command"])
        if body is None:
            failed.append(match["command"])
            return match[0]
        return f"{match[1]}{body}{match[3]}"

    return BLOCK.sub(run, text), failed


def main(paths: list[str]) -> int:
    """Update the files in place.

    Returns:
        The exit code: 1 if a command failed.
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
