"""The JSON Schema (draft 2020-12) of the JSON that a command prints, for ``--schema``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

_COMPARISON = (
    "lightning_perf.compare.verdicts.comparison:Comparison",
    "lightning_perf.compare.verdicts.refusal:Unfair",
    "lightning_perf.compare.verdicts.refusal:InvalidRuns",
)

DOCUMENTS: Mapping[str, tuple[str, ...]] = {
    "analyze": ("lightning_perf.report.document:PerfReport", "lightning_perf.memory_snapshot.document:MemoryReport"),
    "diff": ("lightning_perf.report.compared:Compared", "lightning_perf.memory_snapshot.compared:MemoryDiff"),
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
    "infer": ("lightning_perf.inference.results.tradeoff:Tradeoff", "lightning_perf.inference.results.tradeoff:Sweep"),
    "explain": (
        "lightning_perf.findings.pages:Explanation",
        "lightning_perf.report.nan_diagnosis:NanDiagnosis",
        "lightning_perf.estimates.calibration:Calibration",
    ),
}
"""The documents that each command can print with ``--json``."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ATTRIBUTE = re.compile(r"^ {8}(\w+): ", re.MULTILINE)


def schema_text(command: str) -> str:
    """Return the schema of a command's documents as indented JSON."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(make_schema(command)), indent=2).decode() + "\n"


def make_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's documents. The text on each field comes from the docstring of its class."""
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
    _, *found = _ATTRIBUTE.split(attributes.partition("\n    Example:")[0])
    for name, meaning in zip(found[::2], found[1::2], strict=True):
        if name in definition.get("properties", {}):
            definition["properties"][name]["description"] = " ".join(meaning.split())
