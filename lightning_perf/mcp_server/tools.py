"""The tools of the MCP server: their names, descriptions, arguments and answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from lightning_perf.mcp_server.answers import (
    Result,
    answer_analyze,
    answer_compare,
    answer_data,
    answer_diff,
    answer_estimates,
    answer_explain,
    answer_explain_nan,
    answer_history,
    answer_list_runs,
    answer_probe,
    answer_tune,
)
from lightning_perf.mcp_server.arguments import (
    Analyze,
    Compare,
    Data,
    Diff,
    Estimates,
    Explain,
    ExplainNan,
    History,
    ListRuns,
    More,
    Probe,
    Tune,
)

__all__ = ["MORE", "TOOLS", "Tool", "find_tool"]


@dataclass(frozen=True)
class Tool:
    """A tool of the server.

    Attributes:
        name: Its name.
        description: When to use it, its outcomes, and conclusions to avoid.
        arguments: The class of its arguments.
        answer: Returns its result. It gets the arguments and the folders of the server.
        runs_code: Whether it runs the user's code or loads the machine, so that it needs ``--allow-run``.
        extra_s: Time that a call may take beyond the limit of the server, from its arguments.
    """

    name: str
    description: str
    arguments: type[Struct]
    answer: Callable[[Any, Sequence[Path]], Result]
    runs_code: bool = False
    extra_s: Callable[[Any], float] = lambda _: 0.0

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        definition: dict[str, Any] = msgspec.json.schema(self.arguments)["$defs"][self.arguments.__name__]
        return definition


def find_tool(name: str) -> Tool | None:
    """Return the tool of a name; ``None`` if no tool has it."""
    return next((tool for tool in TOOLS if tool.name == name), None)


def _more(arguments: More, folders: Sequence[Path]) -> Result:
    raise NotImplementedError  # the server answers it from the answers that it keeps


MORE = Tool(
    "more",
    "Return the next part of an answer that was cut. Give the handle from a member named more. The member document of "
    "an answer has such a handle for the whole document, e.g. to read the tables of kernels. The server keeps the "
    "last answers only: if a handle has expired, call the tool again.",
    More,
    _more,
)

TOOLS: tuple[Tool, ...] = (
    Tool(
        "list_runs",
        "List the folders that hold traces, runs or studies, the newest first. Start here if you have no path.",
        ListRuns,
        answer_list_runs,
    ),
    Tool(
        "analyze",
        "Find out where the step time of a training goes and what to change, from a torch.profiler trace or a run of "
        "PerfCallback. Each finding has a rule ID, evidence, the fix, and a range of the estimated saving. Outcomes: "
        "findings, no_finding, and memory for a snapshot of torch.cuda.memory. An estimate is a prediction, not a "
        "measurement: apply the fix, then use compare. held_back lists findings that the whole run contradicts: do not "
        "advise them.",
        Analyze,
        answer_analyze,
    ),
    Tool(
        "diff",
        "Show which categories, operators and kernels changed from one recording to another. Use it to see where a "
        "change acted. Outcomes: faster, slower, same, incomparable, not_comparable, and memory for two memory "
        "snapshots. One pair cannot separate a change "
        "from noise: do not conclude from it that a change helped. Use compare for that.",
        Diff,
        answer_diff,
    ),
    Tool(
        "compare",
        "Decide from repeated runs whether a change made training faster, with intervals and gates. Outcomes: faster, "
        "slower, equivalent, inconclusive, diverged, unfinished, several (see candidates), refused, invalid_runs. If "
        "it refused, the runs differ in more than the treatment. If it is inconclusive, an effect is still possible, "
        "and more runs are needed. Declare gates before you look at the runs. Allow a fact only if the user says so.",
        Compare,
        answer_compare,
    ),
    Tool(
        "history",
        "Show where a metric changed over the commits of a stored history, with an interval and the commits that may "
        "have caused it. Machines are never mixed: each has a series of its own. Outcomes: changed, no_change. A "
        "series with a note may have too few rows for a change.",
        History,
        answer_history,
    ),
    Tool(
        "explain",
        "Return the page of a rule by its ID: symptom, threshold, fix, and how to verify it. Without a rule, list all.",
        Explain,
        answer_explain,
    ),
    Tool(
        "explain_nan",
        "Return why the loss of a run turned NaN or infinite in mixed precision: step, operator, and the layers to "
        "keep in FP32. Outcomes: diagnosed, no_diagnosis.",
        ExplainNan,
        answer_explain_nan,
    ),
    Tool(
        "estimates",
        "Show how often measured gains were inside the ranges that findings estimated. Use it to judge how far to "
        "trust an estimate. Outcomes: measured, no_estimates.",
        Estimates,
        answer_estimates,
    ),
    Tool(
        "probe",
        "Run the recorded operators again on this machine in other settings, and estimate the gain of each. Loads the "
        "machine. Needs a server started with --allow-run. Outcomes: measured, nothing_measured, refused.",
        Probe,
        answer_probe,
        runs_code=True,
        extra_s=lambda arguments: 2 * arguments.seconds,
    ),
    Tool(
        "tune",
        "Try settings on the user's training and keep those that measure faster, with the lines to change. Runs the "
        "user's code for minutes. Needs a server started with --allow-run. Outcomes: kept, nothing_kept, refused.",
        Tune,
        answer_tune,
        runs_code=True,
        extra_s=lambda arguments: 120 * arguments.minutes,
    ),
    Tool(
        "data",
        "Load batches of the user's data set and time each stage, to find the limit of loading. Runs the user's code. "
        "Needs a server started with --allow-run. Outcomes: measured, refused.",
        Data,
        answer_data,
        runs_code=True,
        extra_s=lambda arguments: 2 * arguments.seconds,
    ),
    MORE,
)
"""The tools, in the order in which clients see them."""
