"""Which runs of a study ran other code than the first run of their arm."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_perf.run_files.journal import BlockState

__all__ = ["code_changes"]


def code_changes(states: Mapping[int, BlockState]) -> tuple[str, ...]:
    """Tell where the code of an arm changed in the middle of a study.

    Args:
        states: The state of each block, by its number.

    Returns:
        A line for each arm and each revision that is not that of the arm's first run; none when all is well.
    """
    seen = sorted(
        (code.began_unix_s, block, code.arm, code.revision) for block, state in states.items() for code in state.code
    )
    first: dict[str, str] = {}
    changed: dict[tuple[str, str], list[int]] = {}
    for _, block, arm, revision in seen:
        if revision != first.setdefault(arm, revision):
            blocks = changed.setdefault((arm, revision), [])
            if block not in blocks:
                blocks.append(block)
    return tuple(
        f"The code changed during the study: {arm} ran {revision} in block {', '.join(map(str, blocks))}, "
        f"and {first[arm]} at first."
        for (arm, revision), blocks in changed.items()
    )
