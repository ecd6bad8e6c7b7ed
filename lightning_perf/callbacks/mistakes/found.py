"""The mistakes found in one fit, and the warning for the first one of each kind."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable

from lightning_perf.run_files.numerics.precision import PrecisionMistake

_logger = logging.getLogger("lightning_perf")


class FoundMistakes:
    """Collects mistakes, each kind once per place, and warns about the first one of a kind.

    Args:
        silent: Whether to collect without warnings, e.g. on ranks other than 0.
    """

    MOST_PER_KIND = 5
    """Places to report for a mistake. One that a model repeats in 48 layers has the same fix in all of them."""

    def __init__(self, *, silent: bool = False, warned: Iterable[str] = ()) -> None:
        self._mistakes: list[PrecisionMistake] = []
        self._places: set[tuple[str, str, str]] = set()
        self._silent = silent
        self._warned = set(warned)

    @property
    def mistakes(self) -> tuple[PrecisionMistake, ...]:
        """The mistakes, those that ruin a training first."""
        return tuple(sorted(self._mistakes, key=lambda mistake: (mistake.severity != "high", mistake.step)))

    def kinds(self) -> set[str]:
        """Return the IDs of the mistakes found so far."""
        return {mistake.kind for mistake in self._mistakes}

    def add(self, mistake: PrecisionMistake) -> None:
        """Add a mistake, unless it is known for this place."""
        place = (mistake.kind, mistake.layer, mistake.line)
        known = sum(one.kind == mistake.kind for one in self._mistakes)
        if place in self._places or known >= self.MOST_PER_KIND:
            return
        self._places.add(place)
        self._mistakes.append(mistake)
        if self._silent or mistake.kind in self._warned:
            return
        self._warned.add(mistake.kind)
        message = (
            f"Mixed precision: {mistake.title}{mistake.where}. Fix: {mistake.action} "
            f"(lightning-perf explain {mistake.kind})"
        )
        try:
            warnings.warn(message, UserWarning, stacklevel=2)
        except UserWarning:  # even if the user has turned warnings into errors
            _logger.warning(message)
