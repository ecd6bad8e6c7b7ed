"""`TuneResult`: the versioned document that the renderers show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lightning_perf.documents import Format, SavedDocument, TextDocument
from lightning_perf.run_files.estimates import Source
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.measurement import FAMILY_ERROR

__all__ = ["SCHEMA_VERSION", "Outcome", "Trial", "TuneResult"]

SCHEMA_VERSION = 1


class Outcome(str, Enum):
    """The outcome of a lever."""

    KEPT = "kept"
    REPLACED = "replaced"
    """It was kept until a better lever of its family was."""
    NOT_CONFIRMED = "not confirmed"
    """It was faster in its first pair of processes, but not certainly so in fresh ones."""
    NO_GAIN = "no gain"
    SLOWER = "slower"
    MEASURED = "measured"
    """It makes another training, so the user has to choose."""
    REJECTED = "rejected"
    """It moves the loss."""
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Trial:
    """One lever, tried on top of those kept before it.

    Attributes:
        lever: Its name.
        outcome: Its outcome.
        reason: The reason, if the measurement alone does not give it.
        predicted: Least and most predicted change of the step time, as ratios, by the profile's findings; None without
            a prediction.
        measured: Ratio of the step times with the lever to those without, and its interval. If the lever changes the
            batch size, of the times per sample. None if not measured.
        lines: The lines for the user's code.
        rule: ID of the rule that gave the prediction; None without a prediction.
        source: Its source: ``probed``, ``general`` or ``recording``; None without a prediction.
        on_top_of: The levers of the setting that it was measured against.
    """

    lever: str
    outcome: Outcome
    reason: str | None
    predicted: tuple[float, float] | None
    measured: Estimate | None
    lines: tuple[str, ...]
    rule: str | None = None
    source: Source | None = None
    on_top_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class TuneResult(TextDocument, SavedDocument):
    """The result of a tuning: the levers that were tried, and the lines to change.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf.
        machine: The machine.
        baseline_ms: Step time of the unchanged training, median of windows.
        noise: The ratio of the unchanged training to itself: 1 except for noise.
        trials: The levers in the order in which they were tried, those that do not apply last.
        kept: Names of the levers kept.
        combined: Ratio of the step times, all kept levers together to none, in fresh processes; None if nothing was
            kept or it was not measured.
        confirmed: Whether that ratio is a gain, too.
        lines: All lines to change.
        window_steps: Optimizer steps of a window.
        rounds: Windows of each side in a trial.
        seconds: Time that the tuning took.
        budget_s: Time of the budget.
        interrupted: Whether Ctrl-C ended the tuning early.
        notes: Remarks that a reader needs to judge the figures.
        family_error: Highest chance that any lever is kept if none of them gains anything.
        network: Class and number of parameters of the model; empty if unknown.
        tuning: Names the tuning: its time and a random part; empty in older documents.
    """

    schema_version: int
    tool_version: str
    machine: Machine
    baseline_ms: float
    noise: Estimate
    trials: tuple[Trial, ...]
    kept: tuple[str, ...]
    combined: Estimate | None
    confirmed: bool
    lines: tuple[str, ...]
    window_steps: int
    rounds: int
    seconds: float
    budget_s: float
    interrupted: bool
    notes: tuple[str, ...]
    family_error: float = FAMILY_ERROR
    network: str = ""
    tuning: str = ""

    _format = Format("tuning result", "tuning result", SCHEMA_VERSION, "tune again", TuneError)

    def _renderers(self) -> tuple[Callable[..., None], Callable[[TuneResult], str]]:
        from lightning_perf.tune.rendering import print_result, render_markdown

        return print_result, render_markdown
