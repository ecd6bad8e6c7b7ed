"""A study's definition: arms × blocks of runs, the order in which they run, and the file that holds it."""

from __future__ import annotations

import os
import random
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lightning_perf.compare.errors import CompareError
from lightning_perf.revision import git_revision
from lightning_perf.run_files.journal import STUDY_NAME

__all__ = ["WARM_UP", "Study", "StudyArm", "balanced_orders", "read_study"]

WARM_UP = 0
_PLACEHOLDER = re.compile(r"\{(?:seed|block|dir)\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class StudyArm:
    """One setting.

    Attributes:
        name: Its name: letters, digits, dots, dashes, underscores.
        command: Program and arguments of a run. ``{seed}``, ``{block}`` and ``{dir}`` (a folder for the run's files)
            are filled in.
        environment: Environment variables to set.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def filled(self, *, seed: int, block: int, folder: Path) -> list[str]:
        """The command of one run.

        Example:
            >>> StudyArm("a", ("train.py", "--seed={seed}")).filled(seed=7, block=1, folder=Path("x"))
            ['train.py', '--seed=7']
        """
        values = {"{seed}": str(seed), "{block}": str(block), "{dir}": str(folder)}
        # One pass: a value that looks like a placeholder stays as it is.
        return [_PLACEHOLDER.sub(lambda match: values[match[0]], text) for text in self.command]


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a study runs.

    Attributes:
        arms: The settings; the first is the baseline.
        blocks: Blocks that count, each with one run of every arm. Six are the fewest with which an exact paired test
            can reach p < 0.05.
        treatment: Facts that differ between the arms by intent, as ``precision``.
        seed: Seeds the orders and the runs; block n trains with seed + n in every arm.
        attempts: How often a block is tried when runs of it fail.
        workdir: Folder in which the commands run.
        precise: Add blocks until the interval of the step time reaches at most this share to each side, for every
            candidate. `blocks` then is the number planned so far. None runs exactly `blocks` blocks.
        max_blocks: The largest number of blocks of a precise study; None for any other study.
        study_id: Unique name.
        revision: Of the code in `workdir` when the study was defined; None where there is no git repository.

    Raises:
        CompareError: The definition makes no study.
    """

    arms: tuple[StudyArm, ...]
    blocks: int = 6
    treatment: tuple[str, ...] = ()
    seed: int = 0
    attempts: int = 3
    precise: float | None = None
    max_blocks: int | None = None
    workdir: str = field(default_factory=os.getcwd)
    study_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    revision: str | None = field(default_factory=lambda: git_revision(Path.cwd()))

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(names) < 2:
            raise CompareError("A study needs two arms or more. Give each as --arm NAME=COMMAND.")
        for arm in self.arms:
            if not _NAME.fullmatch(arm.name):
                raise CompareError(
                    f'"{arm.name}" is no name for an arm. Use letters, digits, dots, dashes, underscores.'
                )
            if not arm.command:
                raise CompareError(f"The arm {arm.name} has no command.")
        if len(set(names)) < len(names):
            raise CompareError(f"Two arms have the same name: {', '.join(names)}.")
        if self.blocks < 1 or self.attempts < 1:
            raise CompareError("A study needs at least one block and one attempt.")
        if self.precise is not None and not 0 < self.precise < 1:
            raise CompareError(f"A study cannot have the precision {self.precise!r}: give a share between 0 and 1.")
        if (self.precise is None) != (self.max_blocks is None) or self.blocks > (self.max_blocks or self.blocks):
            raise CompareError("A precise study needs max_blocks, at least as many as blocks; others have none.")

    def order(self, block: int) -> tuple[str, ...]:
        """The arms in the order in which they run in a block; block 0 is the warm-up."""
        names = [arm.name for arm in self.arms]
        if block == WARM_UP:
            return tuple(names)
        # More blocks must not change the order of the earlier ones.
        extensible = self.precise is not None
        return balanced_orders(names, self.blocks, self.seed, extensible=extensible)[block - 1]

    def arm(self, name: str) -> StudyArm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)


def read_study(folder: Path) -> Study:
    """Read a study's definition.

    Args:
        folder: The study's folder.

    Returns:
        The definition.

    Raises:
        CompareError: There is none, or it cannot be read.
    """
    path = folder / STUDY_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Study)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CompareError(f"{folder}: holds no study. Give the folder of one, or two folders of runs.") from error
    except (OSError, msgspec.DecodeError) as error:
        raise CompareError(f"{path}: is no definition of a study ({error}).") from error


def balanced_orders(
    arms: Sequence[str], blocks: int, seed: int, *, extensible: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Draw the order of the arms within each block.

    Of two arms, AB and BA come equally often (one more of either when the blocks are odd in number); of k arms each
    has every position once in any k blocks of a group (a Latin square with shuffled rows and columns). Drift over the
    study then hits all arms alike, and no arm profits from coming first.

    Args:
        arms: Names of the arms.
        blocks: Number of blocks.
        seed: The same seed gives the same orders.
        extensible: Keep each group of k blocks together, so that the orders of fewer blocks begin those of more.

    Returns:
        For each block the names in the order in which they run.

    Example:
        >>> orders = balanced_orders(("fp32", "amp"), 4, seed=0)
        >>> sorted(orders)
        [('amp', 'fp32'), ('amp', 'fp32'), ('fp32', 'amp'), ('fp32', 'amp')]
    """
    rng = random.Random(seed)
    orders: list[tuple[str, ...]] = []
    size = len(arms)
    while len(orders) < blocks:
        columns = rng.sample(list(arms), size)
        shifts = rng.sample(range(size), size)
        orders.extend(tuple(columns[(position + shift) % size] for position in range(size)) for shift in shifts)
    # Groups of k blocks in sequence would make the last block of each predictable: shuffle over the whole study, but
    # only when the last group is whole, or the shuffle could drop one position's balance.
    if blocks % size == 0 and not extensible:
        rng.shuffle(orders)
    return tuple(orders[:blocks])
