"""`TuneResult`: the versioned document of a tuning, and its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct, field

from lightning_perf.documents import Format, SavedDocument, TextDocument
from lightning_perf.errors import ExitCode
from lightning_perf.run_files.estimates import Source
from lightning_perf.show.blocks import Block, Cell, Code, Heading, Line, TableRow, listing, table
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.measurement import FAMILY_ERROR, is_gain, is_loss, noise_share
from lightning_perf.units import NOT_AVAILABLE, counted, format_milliseconds, with_minus

SCHEMA_VERSION = 1


NO_TIME = "the budget leaves no time to confirm it in fresh processes"
"""Why a lever that measured faster is not confirmed."""
OVER_SHARE = "took longer than its share of the budget"
SPENT = "the budget is spent"
BEFORE_INTERRUPT = "interrupted before"


WITHIN_NOISE = "faster, but by no more than the training differs from itself: a quieter machine may show a gain"

LOUD = 0.05
"""A verdict that finds nothing names the gain that noise would have hidden, from this share of a step on."""


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


class Trial(Struct, frozen=True):
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


def is_open(trial: Trial) -> bool:
    """Return whether more time may change the outcome of a lever."""
    return trial.reason in (NO_TIME, OVER_SHARE, SPENT, BEFORE_INTERRUPT)


class Place(Struct, frozen=True):
    """The place of a kept lever's setting in a script.

    Attributes:
        lever: Name of the lever.
        line: The line to write.
        file: The file, as in the diff; None if no file of yours has it.
        line_number: The line of the call that takes the setting, before the diff; None if unknown.
        reason: Why the diff does not hold it; None if it does.
        remark: A side effect of the edit; None if it has none.
    """

    lever: str
    line: str
    file: str | None = None
    line_number: int | None = None
    reason: str | None = None
    remark: str | None = None


class Losses(Struct, frozen=True):
    """The losses of the unchanged training and of all kept levers together, with the same seed, in fresh processes.

    Attributes:
        first_step: First step of the mean, from 1.
        last_step: Its last step.
        unchanged: Mean loss of the unchanged training.
        changed: Mean loss with the kept levers.
    """

    first_step: int
    last_step: int
    unchanged: float
    changed: float


class TuneResult(TextDocument, SavedDocument, frozen=True):
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
        seconds: Time that the tuning took; of a resumed one, all of its parts.
        budget_s: Time of the budget; of a resumed one, with the time that its earlier parts took.
        interrupted: Whether Ctrl-C ended the tuning early.
        notes: Remarks that a reader needs to judge the figures.
        family_error: Highest chance that any lever is kept if none of them gains anything.
        network: Class and number of parameters of the model; empty if unknown.
        tuning: Names the tuning: its time and a random part; empty in older documents.
        losses: The losses side by side; None if nothing was kept or the training returns none.
        versions: Versions of Python and of the installed libraries that affect speed.
        command: The command that repeats the tuning; empty if it began in Python.
        code: Revision and hash of the training's code; empty if it began in Python.
        places: For a script, where the settings of the kept levers are.
        diff: For a script, the unified diff with those that are certain. ``git apply`` takes it.
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
    losses: Losses | None = None
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    code: str = ""
    places: tuple[Place, ...] = ()
    diff: str = ""

    _format = Format("tuning result", "tuning result", SCHEMA_VERSION, "tune again", TuneError)

    @property
    def open_levers(self) -> tuple[str, ...]:
        """Names of the levers that the tuning had no time to decide on."""
        return tuple(trial.lever for trial in self.trials if is_open(trial))

    def judge(self, least: float) -> tuple[ExitCode, str]:
        """Judge a gate: whether levers save at least a share of the step time, which the script leaves on the table.

        Args:
            least: The share.

        Returns:
            The exit code and a sentence. It is inconclusive if an interval includes the limit, a lever is not
            confirmed, or there was no time for it.
        """
        share, ratio = f"{100 * least:g} %", self.combined
        if self.confirmed and ratio is not None and ratio.high is not None and ratio.high < 1 - least:
            return ExitCode.CHECK_FAILED, f"gate failed: {', '.join(self.kept)} saves {share} or more"

        def may_save(measured: Estimate | None) -> bool:
            return measured is None or measured.low is None or measured.low <= 1 - least

        unclear = {Outcome.NO_GAIN, Outcome.NOT_CONFIRMED}
        doubtful = [one.lever for one in self.trials if one.outcome in unclear and may_save(one.measured)]
        doubtful += [name for name in self.open_levers if name not in doubtful]
        doubtful += self.kept if may_save(ratio) else ()
        if doubtful:
            return ExitCode.INCONCLUSIVE, f"gate inconclusive: {', '.join(doubtful)} may save {share}"
        return ExitCode.SUCCESS, f"gate passed: no lever saves {share}"

    def blocks(self) -> Iterator[Block]:
        """Yield the outcome, the lines to change, then the levers."""
        return _blocks(self)


def _blocks(result: TuneResult) -> Iterator[Block]:
    yield Line(_verdict(result), "strong")
    if result.lines:
        yield Heading("Change")
    if result.places:
        yield from _patch(result)
    elif result.lines:
        yield Code(result.lines)
    if result.combined is not None and result.combined.value is not None:
        yield table(("", "unchanged", "changed", "difference"), _proof(result, result.combined), "Proof")
    applicable = [trial for trial in result.trials if trial.outcome is not Outcome.NOT_APPLICABLE]
    others = ((trial.lever, trial.reason or "") for trial in result.trials if trial.outcome is Outcome.NOT_APPLICABLE)
    yield table(("lever", "predicted", "measured", "outcome"), map(_row, applicable), "Levers")
    for title, reasons in (("Why", _reasons(result)), ("Does not apply", others)):
        by_reason: dict[str, list[str]] = {}
        for lever, reason in reasons:
            by_reason.setdefault(reason, []).append(lever)
        if by_reason:
            yield Line(title, "strong")
            yield from listing((f"{', '.join(levers)}: {reason}" for reason, levers in by_reason.items()), indent=2)
    yield Line("How it was measured", "strong")
    yield from listing(_footnotes(result), "quiet", indent=2)
    if result.command:
        yield Line("To repeat", "strong")
        yield Code((result.command,), "sh")


def _patch(result: TuneResult) -> Iterator[Block]:
    """Yield the diff, its places, and the lines that it does not hold."""
    if result.diff:
        yield Code(tuple(result.diff.splitlines()), "diff")
    edited = (place for place in result.places if place.reason is None)
    yield from listing(
        f"{place.file}:{place.line_number}: {place.line} ({place.lever}{f'; {place.remark}' if place.remark else ''})"
        for place in edited
    )
    for place in result.places:
        if place.reason is not None:
            where = "" if place.file is None else f"{place.file}:{place.line_number}: "
            yield Line(f"{place.lever}: write this line yourself. {where}{place.reason}.")
            yield Code((place.line,))


def _proof(result: TuneResult, ratio: Estimate) -> Iterator[TableRow]:
    assert ratio.value is not None
    before, after = map(format_milliseconds, (result.baseline_ms, result.baseline_ms * ratio.value))
    yield "time per step", before, after, _change(ratio)
    if (losses := result.losses) is not None:
        name = f"mean loss of steps {losses.first_step} to {losses.last_step}"
        moved = f"{_percent(losses.changed / losses.unchanged)} %" if losses.unchanged else NOT_AVAILABLE
        yield name, f"{losses.unchanged:.4g}", f"{losses.changed:.4g}", moved


def _verdict(result: TuneResult) -> str:
    """Return the outcome in a sentence or two."""
    if not result.kept:
        return _verdict_of_none(result)
    names = ", ".join(result.kept)
    ratio = result.combined
    if ratio is None or ratio.value is None:
        return f"Kept: {names}. They were not measured all together in fresh processes."
    change = f"{_change(ratio)} time per step"
    if not result.confirmed:
        return f"Kept: {names}. But all together, in fresh processes, the gain is not certain: {change}."
    return f"Kept: {names}. All together, in fresh processes: {change}, {1 / ratio.value:.3g} times as fast."


def _verdict_of_none(result: TuneResult) -> str:
    if not any(trial.measured is not None for trial in result.trials):
        return "No lever could be measured on this training. The reasons are below."
    if unproven := [trial for trial in result.trials if trial.outcome is Outcome.NOT_CONFIRMED]:
        seen = ", ".join(f"{trial.lever} with {_change(trial.measured)} time" for trial in unproven)
        late = any(trial.reason == NO_TIME for trial in unproven)
        advice = "Give more minutes to confirm it." if late else "Fresh processes differed by too much to confirm it."
        return f"Nothing is proven. Faster in their first pair of processes: {seen}. {advice}"
    unseen = 1 - 1 / (1 + noise_share(result.noise))
    limit = f" A gain of less than {100 * unseen:.0f} % could not be seen on this machine." if unseen >= LOUD else ""
    if open_levers := len(result.open_levers):
        others = f"For {counted(open_levers, 'other')} there was no time: give more minutes."
        return f"No lever that was measured makes this training certainly faster. {others}{limit}"
    return f"No lever makes this training certainly faster: leave it unchanged.{limit}"


def _row(trial: Trial) -> TableRow:
    measured = None if trial.measured is None else trial.measured.value
    return trial.lever, _predicted(trial), Cell(_change(trial.measured), measured), trial.outcome.value


def _reasons(result: TuneResult) -> Iterator[tuple[str, str]]:
    """Yield levers that were not kept, each with the reason, if the measurement alone does not say it."""
    unclear = set(Outcome) - {Outcome.KEPT, Outcome.NO_GAIN, Outcome.NOT_APPLICABLE}
    for trial in result.trials:
        if trial.outcome in unclear and trial.reason:
            yield trial.lever, trial.reason
        elif trial.outcome is Outcome.NO_GAIN and trial.measured is not None and (trial.measured.high or 1) < 1:
            yield trial.lever, WITHIN_NOISE
        elif trial.outcome is Outcome.MEASURED and trial.measured is not None:
            certain = is_gain(trial.measured, result.noise) or is_loss(trial.measured, result.noise)
            doubt = "" if certain else "within the noise of the training; "
            yield trial.lever, f"{doubt}another training, for you to choose: {'; '.join(trial.lines)}"


def _footnotes(result: TuneResult) -> tuple[str, ...]:
    """Return notes on the origin of the figures."""
    return (
        f"Step time of the unchanged training: {format_milliseconds(result.baseline_ms)}, on {result.machine.name}.",
        _noise(result.noise),
        (
            "The measured change is that of the time per step (for batch sizes: per sample) against the best "
            f"setting before, with its 95 % interval. Each side had up to {result.rounds} windows of at "
            f"least {result.window_steps} steps."
        ),
        (
            "A lever is kept if three pairs of processes agree. If no lever gained anything, the chance to keep any of "
            f"them would be at most {100 * result.family_error:.0f} %."
        ),
        f"Took {result.seconds / 60:.1f} of {result.budget_s / 60:g} minutes.",
        *([f"Versions: {', '.join(map(' '.join, result.versions.items()))}."] if result.versions else []),
        *result.notes,
    )


def _noise(noise: Estimate) -> str:
    """Return the difference of the training from itself, and its meaning for all other figures."""
    reach = 1 + noise_share(noise)
    text = (
        f"The training against itself: {_change(noise)}. A change from {_percent(1 / reach)} to {_percent(reach)} % "
        "counts as none."
    )
    if noise.low is not None and noise.high is not None and not noise.low <= 1 <= noise.high:
        text += (
            " Its own interval does not contain 0: processes of one training differ by more than the intervals show."
        )
    return text


def _predicted(trial: Trial) -> str:
    if trial.predicted is None:
        return NOT_AVAILABLE
    mark = " (probed)" if trial.source == "probed" else ""
    return " to ".join(with_minus(f"{100 * (ratio - 1):+.0f}") for ratio in sorted(trial.predicted)) + f" %{mark}"


def describe_ratio(ratio: Estimate, *, interval: bool = True) -> str:
    """Return a ratio of times as a change, for lines of progress."""
    if ratio.value is None:
        return "not measured"
    return f"{_change(ratio)} time" if interval else f"{_percent(ratio.value)} %"


def _change(ratio: Estimate | None) -> str:
    if ratio is None or ratio.value is None:
        return NOT_AVAILABLE
    change = f"{_percent(ratio.value)} %"
    if ratio.low is None or ratio.high is None:
        return change
    return f"{change} ({_percent(ratio.low)} to {_percent(ratio.high)})"


def _percent(ratio: float) -> str:
    percent = 100 * (ratio - 1)
    return with_minus(f"{percent:+.0f}" if abs(percent) >= 100 else f"{percent:+.1f}")
