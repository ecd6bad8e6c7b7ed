"""``account.rank0.jsonl``: where the time of a whole fit went, from the start of ``Trainer.fit`` to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from lightning_perf.errors import TraceError
from lightning_perf.lazy_imports import install_command
from lightning_perf.run_files.jsonl import Count, RankLog

VERSION = 1

MAX_STARTS = 200
"""Starts of a data loader that an account lists. Later ones are in its sums only."""

FULL_GENERATION = 2
"""The generation of a full garbage collection."""

Group: TypeAlias = Literal[
    "set-up",
    "data preparation",
    "worker start-up",
    "sanity check",
    "first step",
    "training steps",
    "epoch boundaries",
    "validation",
    "checkpoints",
    "logging",
    "callbacks",
    "own cost",
    "tear-down",
]
"""The groups of entries, in the order in which a report shows them."""


class AccountEntry(Struct, frozen=True):
    """The time of one kind of work in a fit, without the work nested in it that has an entry of its own.

    Attributes:
        name: Its part of the group, e.g. ``fetch``, or ``EMA.on_train_batch_end`` for the hook of a callback.
        time_ns: Time on the clock of the training thread.
        count: How often it ran; 0 for the remainder of a group.
        early_ns: The part of the time in the first half of the steps, or in a quarter of them at least.
        early_count: How often it ran by then; 0 in a short fit.
    """

    group: Group
    name: str
    time_ns: Count
    count: Count
    early_ns: Count = 0
    early_count: Count = 0


class LoaderStart(Struct, frozen=True):
    """One start of the worker processes of a data loader.

    Attributes:
        stage: The loop that the loader belongs to.
        epoch: Number of the epoch, counted from 0.
        workers: Worker processes of the loader.
        persistent: Whether the workers stay alive between epochs.
        start_ns: Time to stop the workers of the last iterator and to start new ones.
        first_batch_ns: Time for which the loop then waited for the first batch.
    """

    stage: Literal["training", "validation"]
    epoch: Count
    workers: Count
    persistent: bool
    start_ns: Count
    first_batch_ns: Count


class GcTotals(Struct, frozen=True):
    """Python's garbage collections of one generation, in the steps of a fit and in the thread that trains.

    Attributes:
        generation: 0 for the newest objects, 2 for a full collection.
        count: How many there were.
        time_ns: Their time in all.
        longest_ns: Time of the longest.
        freed: Objects that they freed.
        objects: Objects in this generation at the end of the training. None if the collections took less than half a
            second: to count the objects takes a good part of a collection.
    """

    generation: Count
    count: Count = 0
    time_ns: Count = 0
    longest_ns: Count = 0
    freed: Count = 0
    objects: Count | None = None


class AccountFacts(Struct, frozen=True):
    """Settings of the Trainer that explain an entry. None stands for a setting that cannot be read.

    Attributes:
        check_val_every_n_epoch: The Trainer's argument of this name.
        val_check_interval: The same; a fraction of an epoch, or a number of batches.
        log_every_n_steps: The same.
        loggers: Class names of the loggers.
        device: Type of the device: ``cpu``, ``cuda``, ….
        cudnn_benchmark: Whether cuDNN searched for the fastest algorithm of each convolution.
    """

    check_val_every_n_epoch: int | None = None
    val_check_interval: float | None = None
    log_every_n_steps: int | None = None
    loggers: tuple[str, ...] = ()
    device: str = ""
    cudnn_benchmark: bool = False


class FitAccount(Struct, frozen=True):
    """The account of a fit: its wall time, divided into entries without overlap.

    A run leaves one line per rank.

    Attributes:
        wall_ns: Time from the first moment that a callback can see inside ``Trainer.fit`` to the end of the account.
            The times of all entries add up to exactly this.
        end: Where the account ends. ``returned``: when ``Trainer.fit`` returned. ``report``: when the report was made,
            before the tear-down. ``exception``: when the Trainer announced an error.
        before_ns: Time from the start of the process to the start of the account: imports, data sets, the model and
            the Trainer. None for a further fit of the same process, or if the system does not say.
        first_step_end_ns: Time from the start of the account to the end of the first optimizer step. None without one.
        compile_ns: Time that ``torch.compile`` took in the first step. None if nothing was compiled.
        samples: Samples trained on; None if the batches do not show it.
        epochs: Epochs of training that were started.
        validations: Runs of the validation loop, without the sanity check.
        starts: Starts of data loaders with worker processes, at most `MAX_STARTS`.
        tokens: Tokens trained on, padding included; None if the batches hold no token sequences.
        collections: Garbage collections in the steps, by generation; empty if they were not measured.
        core_wait_ns: Time from the first step to the last in which the training thread was ready to run and had no
            core. None where the system does not count it.
    """

    version: int
    rank: Count
    wall_ns: Count
    end: Literal["returned", "report", "exception"]
    before_ns: Count | None
    first_step_end_ns: Count | None
    compile_ns: Count | None
    steps: Count
    batches: Count
    samples: Count | None
    epochs: Count
    validations: Count
    entries: tuple[AccountEntry, ...]
    starts: tuple[LoaderStart, ...] = ()
    facts: AccountFacts = AccountFacts()
    tokens: Count | None = None
    collections: tuple[GcTotals, ...] = ()
    core_wait_ns: Count | None = None

    def entry(self, group: Group, name: str) -> AccountEntry:
        """Return an entry; one of zero if no entry has this name."""
        found = (entry for entry in self.entries if entry.group == group and entry.name == name)
        return next(found, AccountEntry(group, name, 0, 0))

    @property
    def report_ns(self) -> int:
        """Time of the report, which comes after the training."""
        return self.entry("own cost", "report").time_ns

    @property
    def fit_ns(self) -> int:
        """Time of the fit without the report."""
        return self.wall_ns - self.report_ns

    @property
    def samples_per_second(self) -> float | None:
        """Samples of this process per second of the whole fit; None if they were not counted."""
        return self.samples / self.fit_ns * 1e9 if self.samples and self.fit_ns else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of this process per second of the whole fit; None if they were not counted."""
        return self.tokens / self.fit_ns * 1e9 if self.tokens and self.fit_ns else None


_ACCOUNTS: RankLog[FitAccount] = RankLog(FitAccount, "account", "account of a fit")
account_paths = _ACCOUNTS.paths


def write_account(folder: Path, account: FitAccount) -> None:
    """Write the account of a rank, atomically."""
    _ACCOUNTS.replace(folder, account.rank, account)


def read_account(path: str | Path) -> FitAccount:
    """Read the account of a fit."""
    accounts = _ACCOUNTS.read(path)
    if not accounts:
        raise TraceError(path, "is empty or incomplete", "Remove it")
    account = accounts[-1]
    if account.version > VERSION:
        problem = f"has version {account.version}, and this lightning-perf reads version {VERSION}"
        raise TraceError(path, problem, f"Upgrade with: {install_command()}")
    total_ns = sum(entry.time_ns for entry in account.entries)
    if total_ns != account.wall_ns:
        problem = f"has entries that add up to {total_ns} ns, but a wall time of {account.wall_ns} ns"
        raise TraceError(path, problem, "Remove it")
    return account
