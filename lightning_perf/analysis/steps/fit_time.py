"""Summary of the account of a fit: its groups, their shares of the wall time, and the rates of the whole fit."""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec import Struct

from lightning_perf.run_files.fit.account import AccountEntry, AccountFacts, FitAccount, GcTotals, Group, LoaderStart


class FitPart(Struct, frozen=True):
    """One entry of the account of a fit.

    Attributes:
        name: Its name, e.g. ``fetch``; empty for the only part of a group.
        time_ns: Its time, without work nested in it that has an entry of its own.
        share: Share of the wall time of the fit, 0 to 1.
        count: How often it ran; 0 for the remainder of a group.
        early_ns: Time per call in the first half of the fit; None if unknown.
        later_ns: Time per call after it.
    """

    name: str
    time_ns: int
    share: float
    count: int
    early_ns: float | None = None
    later_ns: float | None = None


class FitGroup(Struct, frozen=True):
    """A group of entries, e.g. validation.

    Attributes:
        group: Its name.
        time_ns: Time of all its parts.
        share: Share of the wall time of the fit, 0 to 1.
        parts: The parts, the longest first.
    """

    group: str
    time_ns: int
    share: float
    parts: tuple[FitPart, ...]

    def part(self, name: str) -> FitPart:
        """Return a part; one of zero if the group has none of this name."""
        return next((part for part in self.parts if part.name == name), FitPart(name, 0, 0.0, 0))


class FitTime(Struct, frozen=True):
    """Where the time of a whole fit went. The groups do not overlap, and they add up to the wall time exactly.

    Attributes:
        rank: The process that measured it.
        end: Where the account ends: ``returned`` when ``Trainer.fit`` returned, ``report`` when the report was made,
            ``exception`` when the Trainer announced an error.
        wall_ns: Time from the first moment that a callback can see inside ``Trainer.fit`` to the end of the account,
            without the report.
        report_ns: Time of the report until the end of the account. It comes after the training.
        before_ns: Time from the start of the process to the start of the account; None if it is unknown.
        first_step_ns: Time from the start of the account to the end of the first optimizer step; None without one.
        compile_ns: Time that ``torch.compile`` took in the first step; None if nothing was compiled.
        steps: Optimizer steps.
        samples_per_second: Samples of this process per second of the whole fit; None if they were not counted.
        epochs: Epochs of training that were started.
        validations: Runs of the validation loop, without the sanity check.
        groups: The groups that took time, in the order of `lightning_perf.run_files.fit.account.Group`.
        starts: Starts of data loaders with worker processes.
        facts: Settings of the Trainer that explain entries.
        tokens_per_second: Tokens of this process per second of the whole fit, padding included; None if the batches
            hold no token sequences.
        collections: Python's garbage collections in the steps, by generation; empty if they were not measured.
    """

    rank: int
    end: Literal["returned", "report", "exception"]
    wall_ns: int
    before_ns: int | None
    first_step_ns: int | None
    compile_ns: int | None
    steps: int
    samples_per_second: float | None
    epochs: int
    validations: int
    groups: tuple[FitGroup, ...]
    starts: tuple[LoaderStart, ...]
    facts: AccountFacts
    tokens_per_second: float | None = None
    collections: tuple[GcTotals, ...] = ()
    report_ns: int = 0

    def group(self, name: Group) -> FitGroup:
        """Return a group; one of zero if it took no time."""
        return next((group for group in self.groups if group.group == name), FitGroup(name, 0, 0.0, ()))


def _halves_ns(entry: AccountEntry) -> tuple[float | None, float | None]:
    later = entry.count - entry.early_count
    if not entry.early_count or later <= 0:
        return None, None
    return entry.early_ns / entry.early_count, (entry.time_ns - entry.early_ns) / later


def summarize_account(account: FitAccount) -> FitTime:
    """Summarize the account of a fit."""
    fit_ns = account.fit_ns or 1
    groups = []
    for name in get_args(Group):
        parts = [
            FitPart(entry.name, entry.time_ns, entry.time_ns / fit_ns, entry.count, *_halves_ns(entry))
            for entry in account.entries
            if entry.group == name and entry != account.entry("own cost", "report")
        ]
        time_ns = sum(part.time_ns for part in parts)
        if time_ns:
            parts.sort(key=lambda part: (-part.time_ns, part.name))
            groups.append(FitGroup(name, time_ns, time_ns / fit_ns, tuple(parts)))
    same: dict[str, Any] = {
        name: getattr(account, name) for name in FitTime.__struct_fields__ if hasattr(account, name)
    }
    same["wall_ns"] = account.fit_ns
    return FitTime(first_step_ns=account.first_step_end_ns, groups=tuple(groups), **same)
