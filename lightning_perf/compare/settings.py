"""What is declared before looking at the runs."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.compare.verdicts.gates import Gate

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was declared before looking at the runs.

    Attributes:
        treatment: Facts under test, by name or group; those that a study declared are added.
        allow: Facts that may differ besides.
        accuracy: Name of the accuracy among the runs' metrics; None finds it by its name.
        margin: The largest loss of accuracy that does not matter, as a share.
        goal: Accuracy for the time to accuracy.
        collapse_below: Accuracy below which a run has collapsed; None derives it from all runs.
        equivalence: Times within this share of each other are equivalent.
        confidence: Coverage of the intervals of all candidates together.
        gates: What the candidates have to hold.
    """

    treatment: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    accuracy: str | None = None
    margin: float = 0.01
    goal: float | None = None
    collapse_below: float | None = None
    equivalence: float = 0.01
    confidence: float = 0.95
    gates: tuple[Gate, ...] = ()
