"""A refused comparison: the error, and the document that lists the unfair differences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

from lightning_perf.compare.errors import CompareError, InvalidRunsError
from lightning_perf.compare.records.fairness import Difference
from lightning_perf.documents import Document, PageDocument

if TYPE_CHECKING:
    from lightning_perf.page.html import Kind
    from lightning_perf.show.blocks import Block, Parts

_Judged = TypeVar("_Judged")

SCHEMA_VERSION = 1


class UnfairError(CompareError):
    """The arms differ in more than the setting being tested. Its `refusal` is the document with the differences.

    Args:
        baseline: Name of the baseline.
        differences: For each candidate, the differences that are not allowed.
        advice: The way out; by default the options of ``compare``.
    """

    def __init__(
        self, baseline: str, differences: Mapping[str, tuple[Difference, ...]], advice: str | None = None
    ) -> None:
        rows = tuple(
            UnfairRow(arm, difference.fact, difference.baseline, difference.candidate)
            for arm, of_arm in differences.items()
            for difference in of_arm
        )
        facts = ", ".join(sorted({row.fact for row in rows}))
        super().__init__(f"The runs differ in more than the setting being tested: {facts}.")
        self.refusal = Unfair(str(self), baseline, rows, advice=advice)


class UnfairRow(Struct, frozen=True):
    """A fact that makes the comparison unfair.

    Attributes:
        arm: The candidate.
        fact: Name of the fact.
        baseline: Its distinct values over the baseline's runs.
        candidate: Its distinct values over the candidate's runs.
    """

    arm: str
    fact: str
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]


class Unfair(PageDocument, frozen=True):
    """A refused comparison: the arms differ in more than the setting being tested.

    Attributes:
        message: The refusal in one sentence.
        baseline: Name of the baseline.
        rows: The facts that make the comparison unfair.
        advice: The way out if it is not one of the options of ``compare``; otherwise None.
        state: ``"unfair"``, which distinguishes this document from a comparison.
        schema_version: `SCHEMA_VERSION` of the writer, as in a comparison.
    """

    message: str
    baseline: str
    rows: tuple[UnfairRow, ...]
    state: Literal["unfair"] = "unfair"
    advice: str | None = None
    schema_version: int = SCHEMA_VERSION

    def blocks(self, notes: Sequence[str] = ()) -> Iterator[Block]:
        """Yield the unfair differences, further notes on the runs, and the way out."""
        from lightning_perf.compare.verdicts.blocks import unfair_blocks

        return unfair_blocks(self, notes)

    def print(self, notes: Sequence[str] = (), *, file: IO[str] | None = None, width: int | None = None) -> None:
        """Print the reasons of the refusal.

        Args:
            notes: Further notes on the runs.
            file: Output stream; standard error by default.
            width: Columns; the width of the terminal by default.
        """
        from lightning_perf.show.console import print_blocks

        print_blocks(self.blocks(notes), file=sys.stderr if file is None else file, width=width)

    def to_markdown(self, notes: Sequence[str] = ()) -> str:
        """Return the refusal as GitHub-flavoured Markdown.

        Args:
            notes: Further notes on the runs.
        """
        from lightning_perf.show.markup import to_markdown

        return to_markdown(self.blocks(notes))

    def _page(self) -> tuple[Kind, str]:
        return "study", " and ".join(dict.fromkeys([self.baseline, *(row.arm for row in self.rows)]))

    def _parts(self) -> Parts:
        from lightning_perf.compare.verdicts.page import unfair_parts

        return unfair_parts(self)


def or_refusal(judge: Callable[[], _Judged]) -> _Judged | Unfair | InvalidRuns:
    """Return the outcome of a judgement, or its refusal as a document too."""
    try:
        return judge()
    except UnfairError as error:
        return error.refusal
    except InvalidRunsError as error:
        return InvalidRuns(str(error))


class InvalidRuns(Document, frozen=True):
    """A comparison that was not made: an arm has no finished and valid run.

    Attributes:
        message: The arms without valid runs, and the reasons.
        state: ``"invalid"``, which distinguishes this document from a comparison.
        schema_version: `SCHEMA_VERSION` of the writer, as in a comparison.
    """

    message: str
    state: Literal["invalid"] = "invalid"
    schema_version: int = SCHEMA_VERSION
