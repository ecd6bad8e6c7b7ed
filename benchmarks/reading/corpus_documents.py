"""Write the documents of every trace in the corpus, or compare them with those of an earlier version.

A change that only moves code changes no document. Write the documents before it and check after it::

    python -m benchmarks.reading.corpus_documents before/
    python -m benchmarks.reading.corpus_documents before/ --check

The traces are those in ``$LIGHTNING_PERF_CORPUS/traces``. Each has three documents: the report as JSON, the report with
operators told apart by the shapes of their inputs, and the text on the console.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.options import make_parser

DOCUMENTS = {"report.json": ("--json",), "by_shape.json": ("--json", "--by-shape"), "console.txt": ()}
"""Name of each document, and the options of `analyze` that print it."""

SHOWN_LINES = 10
"""Lines of a difference that are printed."""


def documents(trace: Path) -> dict[str, str]:
    """Return the documents of one trace by name.

    Args:
        trace: A trace file.

    Returns:
        The output of the command. If a trace cannot be analysed, the document is the exit code and the error.
    """
    found = {}
    for name, options in DOCUMENTS.items():
        command = [sys.executable, "-m", "lightning_perf", "analyze", *options, str(trace)]
        environment = {**os.environ, "COLUMNS": "120"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        found[name] = done.stdout if done.returncode == 0 else f"exit code {done.returncode}\n{done.stderr}"
    return found


def main() -> int:
    """Write or compare the documents; the exit code is 1 if any of them differs."""
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, help="where the documents are")
    parser.add_argument("--check", action="store_true", help="compare with the documents in FOLDER; write nothing")
    arguments = parser.parse_args()
    corpus = os.environ.get("LIGHTNING_PERF_CORPUS")
    if not corpus:
        parser.error("name the folder of the corpus in LIGHTNING_PERF_CORPUS (docs/corpus.md says how to get it)")
    root = Path(corpus) / "traces"
    traces = sorted(path for path in root.rglob("*.json*") if path.parent != root)
    equal = differing = 0
    for trace in traces:
        for name, text in documents(trace).items():
            path = arguments.folder / trace.relative_to(root).parent / f"{trace.name}.{name}"
            if not arguments.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                continue
            before = path.read_text(encoding="utf-8")
            if before == text:
                equal += 1
                continue
            differing += 1
            print(f"{path.relative_to(arguments.folder)} differs:")
            lines = difflib.unified_diff(before.splitlines(), text.splitlines(), "before", "after", n=0, lineterm="")
            print("\n".join(line[:200] for line in list(lines)[:SHOWN_LINES]))
    if arguments.check:
        print(f"{len(traces)} traces: {equal} documents equal, {differing} differ")
    else:
        print(f"{len(traces)} traces: {len(traces) * len(DOCUMENTS)} documents written")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
