"""What every engine offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["Engine"]


class Engine(Protocol):
    """Runs blocks somewhere. All state is in the study's folder, which every machine has to see at the same path."""

    def check(self) -> None:
        """Make sure that blocks can run.

        Raises:
            CompareError: There is no such device, or no cluster.
        """

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        """Run blocks until each is over.

        Args:
            folder: The study's folder.
            blocks: Numbers of the blocks.
            tick: Called about once a second.

        Raises:
            KeyboardInterrupt: It was stopped; what runs has been ended.
        """
