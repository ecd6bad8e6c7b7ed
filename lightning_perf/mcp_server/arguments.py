"""The arguments of the tools of the MCP server."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = [
    "Analyze",
    "Compare",
    "Data",
    "Diff",
    "Estimates",
    "Explain",
    "ExplainNan",
    "History",
    "ListRuns",
    "More",
    "Probe",
    "Tune",
]

_PathText = Annotated[str, Meta(max_length=4096)]


class _Arguments(Struct, forbid_unknown_fields=True):
    """Base class of the arguments of a tool."""


class ListRuns(_Arguments):
    """Arguments of the tool ``list_runs``."""

    path: Annotated[_PathText, Meta(description="Folder to search (default: all folders of the server).")] = ""


class Analyze(_Arguments):
    """Arguments of the tool ``analyze``."""

    path: Annotated[
        _PathText, Meta(description="A trace (.json or .json.gz), the folder of one run, or a memory snapshot.")
    ]
    by_shape: Annotated[bool, Meta(description="Separate operators by the shapes of their inputs.")] = False


class Diff(_Arguments):
    """Arguments of the tool ``diff``."""

    before: Annotated[_PathText, Meta(description="Trace or run folder before the change.")]
    after: Annotated[_PathText, Meta(description="Trace or run folder after the change.")]


class Compare(_Arguments):
    """Arguments of the tool ``compare``."""

    arms: Annotated[
        dict[str, Annotated[list[_PathText], Meta(min_length=1)]],
        Meta(description="Name of each arm and its folders. The first arm is the baseline. Leave out for a study."),
    ] = {}
    study: Annotated[_PathText, Meta(description="Folder of a study, in place of arms.")] = ""
    treatment: Annotated[list[str], Meta(description="Facts being tested, e.g. precision.")] = []
    allow: Annotated[list[str], Meta(description="Other facts that may differ, e.g. code.")] = []
    gates: Annotated[list[str], Meta(description="Limits, e.g. step_time<=1.05 or accuracy>=-0.01.")] = []


class History(_Arguments):
    """Arguments of the tool ``history``."""

    store: Annotated[_PathText, Meta(description="Folder of a history, e.g. perf-history.")]
    metric: Annotated[str, Meta(max_length=100, description="Metric of a comparison, e.g. throughput.")] = "step_time"
    since: Annotated[str, Meta(max_length=100, description="Show rows from this date or commit on. Empty for all.")] = (
        ""
    )


class Explain(_Arguments):
    """Arguments of the tool ``explain``."""

    rule: Annotated[str, Meta(max_length=200, description="ID of a rule, e.g. input-bound. Empty for a list.")] = ""


class ExplainNan(_Arguments):
    """Arguments of the tool ``explain_nan``."""

    path: Annotated[_PathText, Meta(description="Folder of a run with precision.json.")]


class Estimates(_Arguments):
    """Arguments of the tool ``estimates``."""

    paths: Annotated[list[_PathText], Meta(description="Folders with runs (default: all of the server).")] = []


class Probe(_Arguments):
    """Arguments of the tool ``probe``."""

    path: Annotated[_PathText, Meta(description="A trace or the folder of a run.")]
    seconds: Annotated[float, Meta(gt=0, le=300, description="Time for the probe.")] = 10.0


class Tune(_Arguments):
    """Arguments of the tool ``tune``."""

    training: Annotated[str, Meta(max_length=500, description="package.module:name of a function that returns it.")]
    minutes: Annotated[float, Meta(gt=0, le=120, description="Time budget.")] = 15.0
    levers: Annotated[list[str], Meta(description="Levers or families to try (default: all that apply).")] = []


class Data(_Arguments):
    """Arguments of the tool ``data``."""

    source: Annotated[str, Meta(max_length=500, description="package.module:name of a function that returns it.")]
    seconds: Annotated[float, Meta(gt=0, le=300, description="How long to load.")] = 10.0
    step_ms: Annotated[float | None, Meta(description="Time of a training step without waits for data.")] = None


class More(_Arguments):
    """Arguments of the tool ``more``."""

    handle: Annotated[str, Meta(max_length=4096, description="The value of a member named more.")]
