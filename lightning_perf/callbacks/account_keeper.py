"""The account of the fit under way: starts it, saves it, and completes the report with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_perf.callbacks.account.fit_account import FitAccountant
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.report import complete_report
from lightning_perf.run_files.fit.account import write_account

if TYPE_CHECKING:
    from lightning_perf.report.document import PerfReport


class AttachedLog:
    """The attribute `log` of a callback, which notifies the callback when a Trainer sets it.

    The Trainer sets it to the `log` of the module at the start of every fit, before it prepares data. No hook of a
    callback is as early.
    """

    def __get__(self, callback: Any, owner: type[Any]) -> Any:
        """Return the module's `log`; None before the first fit."""
        return self if callback is None else vars(callback).get("log")

    def __set__(self, callback: Any, log: Any) -> None:
        """Keep the module's `log`, and notify the callback."""
        vars(callback)["log"] = log
        callback._on_attach(getattr(getattr(log, "__self__", None), "_trainer", None))


class AccountKeeper:
    """Keeps the account of one fit at a time. An error costs the account only."""

    def __init__(self) -> None:
        self.accountants: list[FitAccountant] = []
        """Keeps the account: one during a fit, none between two fits and in other functions of a Trainer."""
        self.folder: Path | None = None
        """Where the account goes; None before training has started."""
        self.report: PerfReport | None = None
        """The report of the fit, to be completed when the fit is over; None without a report."""
        self.report_errors = ErrorReporter()

    def open(self, trainer: Trainer | None) -> None:
        """Start the account of a fit. Nothing happens for other functions of a Trainer."""
        with ErrorReporter().instead("the account of the fit is left out"):
            if trainer is None or trainer.state.fn != "fit":
                return
            self.close()  # the last fit ended without a call that we see
            self.accountants = [FitAccountant(trainer, on_end=self._complete)]

    def save(self, end: Literal["returned", "report", "exception"]) -> None:
        """Save the account until now."""
        for accountant in self.accountants:
            account = accountant.snapshot(end)
            if account is not None and self.folder is not None:
                with accountant.errors.instead("the account of the fit is not saved"):
                    write_account(self.folder, account)

    def close(self) -> None:
        """Give the Trainer its own methods back, and forget the fit."""
        accountants, self.accountants = self.accountants, []
        self.folder = self.report = None
        for accountant in accountants:
            accountant.close()

    def _complete(self) -> None:
        """Save the account of the whole fit, in place of the one until the report."""
        for accountant in self.accountants:
            accountant.close()
            # Writing the report again takes longer than writing the account, so the account comes last and includes it.
            account = accountant.snapshot("returned")
            if self.report is not None and self.folder is not None and account is not None:
                complete_report(self.folder, self.report, account, self.report_errors)
        self.save("returned")
        self.close()
