"""The verdict: where the time goes, why, and what to do next, in plain sentences with numbers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.breakdown import Breakdown, CategoryTime
from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.findings.conditions import is_busy, is_oversubscribed
from lightning_perf.findings.finding import BASIS_TEXT, LEADING, Finding
from lightning_perf.findings.savings import each
from lightning_perf.findings.whole_run import HeldBack
from lightning_perf.report.labels import CATEGORY_CLAUSES, NO_OPERATORS_CLAUSE, UNRECORDED_CLAUSES
from lightning_perf.units import counted, format_duration, format_rate, format_share

NAMED_SHARE = 0.05
NAMED_CATEGORIES = 3
"""The verdict names the largest categories only, and none below this share."""

TELLING_SHARE = 0.9
"""From this share of its category on, a part is named instead of the category."""

NAMED_UNREAD = 4
"""Categories and processes with unread events that are named."""

DRIVING_SHARE = 0.05
"""From this share of the step in runtime calls on, the host drives a device, even if no device work was recorded."""

BUSY_SHARE = 0.80
"""From this share of device compute on, only faster or less arithmetic can save time."""


class Verdict(Struct, frozen=True):
    """The answer in three parts, one or two sentences each.

    Attributes:
        where: Where the time goes.
        why: Why it goes there.
        next: What to do next.
    """

    where: str
    why: str
    next: str


def judge(
    lead: RankAnalysis | None,
    findings: Sequence[Finding],
    step_times: StepTimes | None,
    *,
    held_back: Sequence[HeldBack] = (),
    headline: str = "",
    fit_findings: Sequence[Finding] = (),
    fit: FitTime | None = None,
) -> Verdict:
    """Say where the time goes, why, and what to do next.

    Args:
        findings: Causes of lost time, the most to save first.
        fit: Where the time of the fit went. The steps may be a small part of it.
    """
    if lead is None:
        return _unrecorded(step_times, findings)
    where = f"{headline} {_where(lead, step_times)}".strip()
    if lead.metadata.device_stopped:
        return Verdict(
            where=where,
            why="The recorder's buffer for device events was full, and it dropped the later ones. Any share of time "
            "would mislead you.",
            next="Record fewer steps, PerfCallback(active=1), and analyze that trace.",
        )
    if lead.problems.unread_events and not lead.problems.truncated:
        return Verdict(
            where=where,
            why=f"{_unread(lead)} are of no known category. They are likely to be the work of the device, so any share "
            "of time would mislead you.",
            next="Look for the part to change in the timeline: lightning-perf view FILE. Or use the device maker's own "
            "tool.",
        )
    if lead.breakdown.truncated:
        return Verdict(
            where=where,
            why="The trace file ends early. Device events come last in it, so any share of time would mislead you.",
            next="Record again, let the export finish, and analyze that trace.",
        )
    leads = _leading_of_fit(fit_findings, findings, fit)
    number = counted(len(held_back), "finding")
    held = f"{number} of the recorded steps {'is' if len(held_back) == 1 else 'are'} held back."
    if findings and leads is None:
        top = findings[0]
        rest = f" {counted(len(findings) - 1, 'more finding')} below." if len(findings) > 1 else ""
        whose = f"On rank {top.rank}: " if _of_another(top, lead) else ""
        little = "A known change would save little. The most: " if top.severity == "low" else ""
        return Verdict(
            where=where,
            why=f"{little}{whose}{top.title}.{f' {top.evidence[0]}' if top.evidence else ''}",
            next=f"{fix_text(top)} {saving_text(top, lead)}{rest}".strip(),
        )
    if held_back and leads is None:
        why = f"{held} The first: {held_back[0].finding.title}."
        return Verdict(where=where, why=why, next=held_back[0].reason)
    if fit_findings:
        top = leads or fit_findings[0]
        steps = "" if findings else held if held_back else "The recorded steps have no finding."
        why = f"{f'{steps} ' if steps else ''}Over the fit: {top.title}."
        return Verdict(where=where, why=why, next=f"{fix_text(top)} {saving_text(top, lead)}".strip())
    if not lead.breakdown.has_device and drives_device(lead.breakdown):
        return Verdict(
            where=where,
            why="The device was not recorded, so its state is unknown.",
            next="Record again with the work of the device, as the note says.",
        )
    return Verdict(where=where, why="No rule found time that a known change would save.", next=_healthy(lead))


def rests_on_first(verdict: Verdict, findings: Sequence[Finding]) -> bool:
    """Return whether a verdict is about the first finding of the steps."""
    return bool(findings) and findings[0].title in verdict.why


def fix_text(finding: Finding) -> str:
    """Return the fix, after a warning if it changes results."""
    return f"{finding.warning} {finding.action}".strip()


def drives_device(breakdown: Breakdown) -> bool:
    """Return whether the host launched work, or made more runtime calls than the few of the profiler itself."""
    rows = [breakdown.category(name) for name in ("kernel_launch", "runtime")]
    return bool(rows[0].mean_ns) or (rows[1].share or 0.0) >= DRIVING_SHARE


def _leading_of_fit(
    fit_findings: Sequence[Finding], findings: Sequence[Finding], fit: FitTime | None
) -> Finding | None:
    """Return the first finding about the whole fit if it saves more of it than the steps' first finding.

    A slow first step leads only where the steps have no finding: in a longer training its share shrinks by itself.
    """
    found = next((each for each in fit_findings if each.kind != "slow-first-step" or not findings), None)
    if found is None or found.severity == "low":
        return None
    of_steps = fit.group("training steps").share if fit is not None else 1.0
    first = next(iter(findings), None)
    if first is None or (first.kind not in LEADING and _saved_share(found) >= of_steps * _saved_share(first)):
        return found
    return None


def _saved_share(finding: Finding) -> float:
    """Return the middle of the estimated saving as a share of the step or the fit."""
    return ((finding.saving_low_ms or 0.0) + (finding.saving_high_ms or 0.0)) / 2 / (finding.step_ms or 1.0)


def saving_range(finding: Finding, lead: RankAnalysis | None) -> str:
    """Return the estimated saving, e.g. ``1.2 ms to 3.4 ms per step``, of a finding that has an estimate."""
    low, high = finding.saving_low_ms or 0.0, finding.saving_high_ms or 0.0
    of_what = "of the fit" if finding.per == "fit" else "per step" if lead is None else each(lead)
    least, most = format_duration(low * 1e6), format_duration(high * 1e6)
    return f"{most if least == most else f'{least} to {most}' if low > 0 else f'up to {most}'} {of_what}"


def saving_text(finding: Finding, lead: RankAnalysis | None) -> str:
    """Return the estimated saving as a sentence; empty if the finding has no estimate.

    Args:
        lead: The rank that the report speaks of, if one is known; of another one's step the shares say so.
    """
    low, high = finding.saving_low_ms, finding.saving_high_ms
    if low is None or high is None:
        return ""
    shares = ""
    if finding.step_ms and format_duration(low * 1e6) != format_duration(high * 1e6):
        least = f"{format_share(low / finding.step_ms)} to " if low > 0 else ""
        whose = f" of rank {finding.rank}'s" if _of_another(finding, lead) else ""
        shares = f" ({least}{format_share(high / finding.step_ms)}{whose})"
    return f"Estimated saving: {saving_range(finding, lead)}{shares}{BASIS_TEXT[finding.basis]}."


def _of_another(finding: Finding, lead: RankAnalysis | None) -> bool:
    return lead is not None and finding.rank not in (None, lead.rank)


def _where(lead: RankAnalysis, step_times: StepTimes | None) -> str:
    """Say how long a step takes, by the steps without the profiler if they are known, and where the time goes."""
    breakdown = lead.breakdown
    usual = step_times.of_rank(lead.rank) if step_times is not None else None
    if lead.problems.truncated:
        return f"The readable part of the trace spans {format_duration(lead.recording_ns)}. The rest of it is missing."
    wall = format_duration(breakdown.wall.mean_ns)
    rank = "" if lead.rank is None or (lead.metadata.world_size or 1) <= 1 else f" on rank {lead.rank}"
    if breakdown.marked:
        steps = breakdown.averaged_steps
        subject = f"A step takes {wall}{rank} ({f'mean of {steps}' if steps > 1 else 'one recorded'})"
        if breakdown.averages_cut_steps:
            subject = f"The recorded part of a step takes {wall}{rank} (no step is complete)"
        elif usual is not None:
            median = f"median of {usual.steps:,} without the profiler"
            recorded = (
                f"The recorded steps take {wall} (mean of {steps})" if steps > 1 else f"The recorded one takes {wall}"
            )
            subject = f"A step takes {format_duration(usual.p50_ns)}{rank} ({median}). {recorded}"
    else:
        subject = f"The whole recording takes {wall}{rank} (it marks no steps)"
    parts = _parts(lead)
    return f"{subject}: {', '.join(parts)}." if parts else f"{subject}."


def _unread(lead: RankAnalysis) -> str:
    """Return the number of events of unknown categories, and where they are."""
    return f"{counted(lead.problems.unread_events, 'event')} in {', '.join(lead.problems.unread_in[:NAMED_UNREAD])}"


def _parts(lead: RankAnalysis) -> list[str]:
    breakdown = lead.breakdown
    rows = [row for row in breakdown.categories if row.parent is None and row.share is not None]
    rows.sort(key=lambda row: -(row.share or 0.0))
    named = [row for row in rows[:NAMED_CATEGORIES] if (row.share or 0.0) >= NAMED_SHARE]
    clauses = CATEGORY_CLAUSES if breakdown.has_device else CATEGORY_CLAUSES | UNRECORDED_CLAUSES
    if lead.operators is None:
        clauses = clauses | {"host_other": NO_OPERATORS_CLAUSE}
    return [f"{format_share(row.share)} {clauses[_telling(breakdown, row)]}" for row in named]


def _telling(breakdown: Breakdown, row: CategoryTime) -> str:
    """Return the part that makes up nearly all of a category, if there is one, else the category."""
    parts = [part for part in breakdown.categories if part.parent == row.name and part.name in CATEGORY_CLAUSES]
    least_ns = TELLING_SHARE * (row.mean_ns or 0.0)
    return next((part.name for part in parts if (part.mean_ns or 0.0) >= least_ns), row.name)


def _healthy(lead: RankAnalysis) -> str:
    breakdown, processor = lead.breakdown, lead.metadata.processor
    if processor is not None and processor.trains and is_busy(processor) and not is_oversubscribed(processor):
        return "Record again on a quiet machine."
    category = breakdown.category("device_compute" if breakdown.has_device else "host_compute")
    costliest = _costliest(lead)
    if category.share is not None and category.share >= BUSY_SHARE and costliest is not None:
        who = "device" if breakdown.has_device else "host"
        name, time_ns = costliest
        return f"The {who} computes nearly all the time. {name} takes most, {format_duration(time_ns)} {each(lead)}."
    return "Compare with a second recording before you change anything. The full report shows the largest parts."


def _costliest(lead: RankAnalysis) -> tuple[str, float] | None:
    """Return the operator with the most time of its own, if there is one, and that time per step."""
    operators = lead.operators
    if operators is None or not operators.rows:
        return None
    row = operators.rows[0]
    time_ns = row.host_self_ns if row.device_self_ns is None else row.device_self_ns
    return (row.name, time_ns / max(operators.steps, 1)) if time_ns else None


def _unrecorded(step_times: StepTimes | None, findings: Sequence[Finding]) -> Verdict:
    if step_times is None:
        return Verdict(
            where="Nothing was recorded.",
            why="There is neither a trace nor a step time.",
            next="Train for a few more steps.",
        )
    rate = f", {format_rate(step_times.samples_per_second, 'samples')}" if step_times.samples_per_second else ""
    where = (
        f"A step takes {format_duration(step_times.p50_ns)} (median of {step_times.steps}{rate}), "
        f"{format_share(step_times.data_wait_share)} of it waiting for the next batch."
    )
    if findings:
        top = findings[0]
        return Verdict(where, f"{top.title}. {top.evidence[0]}", f"{fix_text(top)} {saving_text(top, None)}".strip())
    return Verdict(
        where=where,
        why="No step was profiled, so where the rest of the time goes is unknown.",
        next=(
            "Train for more steps, let PerfCallback skip fewer of them (skip_first, wait, warmup), or remove the cause "
            "that a note names."
        ),
    )
