"""``lightning-perf schema``: print the JSON Schema of the JSON that a command prints."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_perf.arguments import describe, print_json
from lightning_perf.exit_codes import ExitCode

__all__ = ["DOCUMENTS", "HELP", "add_arguments", "make_schema", "run"]

HELP = "print the JSON Schema of a command's --json"

_COMPARISON = (
    "lightning_perf.compare.verdicts.comparison:Comparison",
    "lightning_perf.compare.verdicts.refusal:Unfair",
    "lightning_perf.compare.verdicts.refusal:InvalidRuns",
)

DOCUMENTS: Mapping[str, tuple[str, ...]] = {
    "analyze": ("lightning_perf.report.document:PerfReport", "lightning_perf.memory_snapshot.document:MemoryReport"),
    "diff": ("lightning_perf.report.compared:Compared", "lightning_perf.memory_snapshot.compared:MemoryDiff"),
    "probe": ("lightning_perf.run_files.probe:Probe",),
    "tune": ("lightning_perf.tune.result:TuneResult",),
    "data": ("lightning_perf.loading.result:LoadingReport",),
    "compare": _COMPARISON,
    "study": _COMPARISON,
    "gate": _COMPARISON,
    "history": (
        "lightning_perf.history.document:History",
        "lightning_perf.history.gate:HistoryGate",
        "lightning_perf.compare.verdicts.refusal:Unfair",
        "lightning_perf.compare.verdicts.refusal:InvalidRuns",
    ),
    "infer": ("lightning_perf.inference.results.tradeoff:Tradeoff", "lightning_perf.inference.results.sweep:Sweep"),
    "explain": ("lightning_perf.findings.explanation:Explanation",),
    "explain-nan": ("lightning_perf.report.nan_diagnosis:NanDiagnosis",),
    "estimates": ("lightning_perf.estimates.calibration:Calibration",),
}
"""The documents that each command can print with ``--json``."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ATTRIBUTE = re.compile(r"^ {8}(\w+): ", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Print the JSON Schema (draft 2020-12) of the JSON that a command prints with --json. Without COMMAND, list "
        "the commands.",
        usage="[COMMAND]",
        examples=("lightning-perf schema", "lightning-perf schema analyze > report.schema.json"),
        exit_codes={ExitCode.SUCCESS: "the schema or the list was printed"},
    )
    parser.add_argument(
        "document", nargs="?", metavar="COMMAND", choices=tuple(DOCUMENTS), help="command with --json, e.g. analyze"
    )


def run(options: argparse.Namespace) -> int:
    """Print the schema, or the list of commands, and return the exit code."""
    if options.document is None:
        sys.stdout.write("".join(f"{name}\n" for name in DOCUMENTS))
    else:
        print_json(make_schema(options.document))
    return ExitCode.SUCCESS


def make_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of the documents that a command prints with ``--json``.

    Args:
        command: A key of `DOCUMENTS`.

    Returns:
        The schema. The text on each field comes from the docstring of its class.

    Example:
        >>> make_schema("explain")["$ref"]
        '#/$defs/Explanation'
    """
    import msgspec

    types = []
    for place in DOCUMENTS[command]:
        module, _, name = place.partition(":")
        types.append(getattr(importlib.import_module(module), name))
    roots, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    for definition in definitions.values():
        _move_descriptions(definition)
    root = roots[0] if len(roots) == 1 else {"anyOf": list(roots)}
    return {"$schema": _DIALECT, "title": f"lightning-perf {command} --json", **root, "$defs": definitions}


def _move_descriptions(definition: dict[str, Any]) -> None:
    """Move the section *Attributes* of a class's docstring to the properties of its schema."""
    text, _, attributes = definition.get("description", "").partition("    Attributes:\n")
    if text:
        definition["description"] = " ".join(text.partition("    Example:")[0].split())
    for name, meaning in _attributes(attributes.partition("\n    Example:")[0]):
        if name in definition.get("properties", {}):
            definition["properties"][name]["description"] = meaning


def _attributes(section: str) -> Iterator[tuple[str, str]]:
    found = list(_ATTRIBUTE.finditer(section))
    for place, match in enumerate(found):
        end = found[place + 1].start() if place + 1 < len(found) else len(section)
        yield match[1], " ".join(section[match.end() : end].split())
