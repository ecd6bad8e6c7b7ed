"""``estimates.jsonl``: the estimates of findings, each next to the gain that was measured later.

``tune``, ``diff``, ``compare``, ``study`` and a second fit of `PerfCallback` append to it, in the folder of their own
results. ``lightning-perf explain --estimates`` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Struct, field

from lightning_perf.run_files.jsonl import JsonLines

ESTIMATES_NAME = "estimates.jsonl"

Source = Literal["probed", "general", "recording"]
"""The origin of an estimate: operators that ran again on this device, factors for all networks, or recorded times."""

Method = Literal["tune", "diff", "compare", "study", "second fit", "benchmark"]
"""How the gain was measured."""

Positive = Annotated[float, msgspec.Meta(gt=0)]


class EstimateOutcome(Struct, frozen=True):
    """One estimate and the gain that was measured after its advice was followed.

    Attributes:
        rule: ID of the rule that gave the estimate, e.g. ``cpu-bf16``.
        setting: The change that was measured, e.g. ``train.precision 32-true → bf16-mixed``.
        step_ms: Step time before the change, in milliseconds.
        low_ms: Least estimated saving in milliseconds per step.
        high_ms: Most estimated saving in milliseconds per step.
        source: ``probed``, ``general`` or ``recording``.
        gain_ms: Measured gain in milliseconds per step; negative if the step became slower. If the batch size changed,
            the gain is that for as many samples as a step had before.
        gain_low_ms: Lower end of its 95 % interval; ``None`` for a measurement without one.
        gain_high_ms: Upper end of its 95 % interval; ``None`` for a measurement without one.
        method: How it was measured.
        measurement: Names the measurement. Two lines with the same name, rule and setting are the same measurement.
        on_top_of: Other changes that were already in effect. The estimate was made without them.
        network: The model, e.g. its class and its number of parameters; empty if unknown.
        fingerprint: Hash of the recorded layers; ``None`` if unknown.
        machine: Device or processor; empty if unknown.
        versions: Versions of packages, by their names.
        measured_unix_s: When the line was written, in seconds since 1970.
    """

    rule: str
    setting: str
    step_ms: Positive
    low_ms: float
    high_ms: float
    source: Source
    gain_ms: float
    gain_low_ms: float | None
    gain_high_ms: float | None
    method: Method
    measurement: str
    on_top_of: tuple[str, ...] = ()
    network: str = ""
    fingerprint: str | None = None
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    measured_unix_s: float = 0.0

    @property
    def width(self) -> float | None:
        """Upper end of the estimated range divided by the lower one; ``None`` without a positive lower end."""
        return self.high_ms / self.low_ms if self.low_ms > 0 else None


ESTIMATES: JsonLines[EstimateOutcome] = JsonLines(EstimateOutcome, "measured estimate", own_lines=True)


def add_outcomes(folder: Path, outcomes: Iterable[EstimateOutcome]) -> Path | None:
    """Append outcomes to the file in a folder, except those that it already holds.

    Those with a figure that is not finite are left out, because JSON has no such numbers.
    """
    path = folder / ESTIMATES_NAME
    known = {_name(outcome) for outcome in ESTIMATES.read(path)} if path.exists() else set()
    new = [outcome for outcome in outcomes if _name(outcome) not in known and _is_finite(outcome)]
    if not new:
        return None
    ESTIMATES.append(path, *new)
    return path


def find_outcomes(folder: Path) -> tuple[EstimateOutcome, ...]:
    """Read the outcomes in a folder and its subfolders. Incomplete lines are skipped."""
    files = [folder] if folder.is_file() else sorted(folder.rglob(ESTIMATES_NAME))
    return without_repeats(outcome for file in files for outcome in ESTIMATES.read(file) if _is_finite(outcome))


def without_repeats(outcomes: Iterable[EstimateOutcome]) -> tuple[EstimateOutcome, ...]:
    """Return the outcomes without repeats of a measurement: the one that was written last counts."""
    found = {_name(outcome): outcome for outcome in sorted(outcomes, key=lambda one: one.measured_unix_s)}
    return tuple(found.values())


def _name(outcome: EstimateOutcome) -> tuple[str, str, str, str]:
    return outcome.rule, outcome.setting, outcome.method, outcome.measurement


def _is_finite(outcome: EstimateOutcome) -> bool:
    figures = (outcome.step_ms, outcome.low_ms, outcome.high_ms, outcome.gain_ms)
    ends = (outcome.gain_low_ms, outcome.gain_high_ms)
    return all(map(math.isfinite, figures)) and all(end is None or math.isfinite(end) for end in ends)
