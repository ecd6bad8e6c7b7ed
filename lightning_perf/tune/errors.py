"""Errors of the tuner."""

from __future__ import annotations

__all__ = ["NoTrainingError", "NotApplicableError", "OutOfTimeError", "TrialError", "TuneError"]


class TuneError(ValueError):
    """The training, or a setting of the tuner, cannot be used; the message says what was wrong and what to do."""


class TrialError(Exception):
    """A lever failed. Its row says the reason; the others go on."""


class NotApplicableError(TrialError):
    """A lever turned out not to be for this training."""


class NoTrainingError(TrialError):
    """What was named as the training is not there."""


class OutOfTimeError(TrialError):
    """It took longer than it was given."""
