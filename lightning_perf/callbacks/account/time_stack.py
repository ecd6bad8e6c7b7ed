"""A stack of nested actions that divides time among them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lightning_perf.run_files.fit.account import AccountEntry, Group


class TimeStack:
    """Divides the time of one thread among nested actions.

    Each action gets the time in which it is the innermost one. Every reading of the clock ends one interval and starts
    the next, so the times of all actions add up to the whole time, to the nanosecond. Calls from other threads are
    ignored.

    `enter` and `leave` run a dozen times per training step. Keep them short.

    Attributes:
        times_ns: Time of each entry, by the entry's number.
        counts: How often each entry was entered.
        phases: The entries of the phases of the loop, by the number of the phase. `enter_phase` uses them. A negative
            entry stands for the innermost action.
        start_ns: The clock's first reading.

    Example:
        >>> readings = iter([0, 10, 25, 30])
        >>> stack = TimeStack("training steps", "", now_ns=lambda: next(readings))
        >>> stack.enter(stack.entry("checkpoints", "write"))
        >>> stack.leave()
        >>> stack.close()
        30
        >>> [(entry.name, entry.time_ns) for entry in stack.entries()]
        [('', 15), ('write', 15)]
    """

    def __init__(self, group: Group, name: str, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._thread = threading.get_ident()
        self._numbers: dict[tuple[Group, str], int] = {}
        self.times_ns: list[int] = []
        self.counts: list[int] = []
        self.phases: list[int] = []
        self._halves: list[tuple[int, list[int], list[int]]] = []
        self._stack = [self.entry(group, name)]
        self.start_ns = self._since_ns = now_ns()

    @property
    def base(self) -> int:
        """The outermost entry."""
        return self._stack[0]

    @property
    def depth(self) -> int:
        """Actions inside the outermost entry."""
        return len(self._stack) - 1

    @property
    def is_own_thread(self) -> bool:
        """Whether the current thread is the one that the stack follows."""
        return threading.get_ident() == self._thread

    def entry(self, group: Group, name: str) -> int:
        """Return the number of an entry. The first call makes it."""
        number = self._numbers.setdefault((group, name), len(self.times_ns))
        if number == len(self.times_ns):
            self.times_ns.append(0)
            self.counts.append(0)
        return number

    def enter(self, number: int) -> None:
        """Start an action."""
        if threading.get_ident() == self._thread:
            now_ns = self._now_ns()
            stack = self._stack
            self.times_ns[stack[-1]] += now_ns - self._since_ns
            self._since_ns = now_ns
            self.counts[number] += 1
            stack.append(number)

    def enter_phase(self, phase: int) -> None:
        """Start the action that stands for a phase at present."""
        if threading.get_ident() == self._thread:
            now_ns = self._now_ns()
            stack = self._stack
            top = stack[-1]
            self.times_ns[top] += now_ns - self._since_ns
            self._since_ns = now_ns
            number = self.phases[phase]
            if number < 0:
                number = top
            else:
                self.counts[number] += 1
            stack.append(number)

    def leave(self) -> None:
        """End the innermost action."""
        if threading.get_ident() == self._thread:
            stack = self._stack
            if len(stack) > 1:
                now_ns = self._now_ns()
                self.times_ns[stack.pop()] += now_ns - self._since_ns
                self._since_ns = now_ns

    def replace(self, number: int) -> None:
        """End the innermost action and start another with the same reading of the clock."""
        if threading.get_ident() == self._thread and len(self._stack) > 1:
            self.charge()
            if number < 0:
                number = self._stack[-2]
            else:
                self.counts[number] += 1
            self._stack[-1] = number

    def set_base(self, number: int, *, collapse: bool = False) -> None:
        """Replace the outermost entry."""
        self.charge()
        self._stack[0] = number
        if collapse:
            del self._stack[1:]

    def charge(self) -> int:
        """Charge the time until now to the innermost action, and return the reading of the clock."""
        now_ns = self._now_ns()
        self.times_ns[self._stack[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns
        return now_ns

    def mark(self, steps: int) -> None:
        """Keep the times and counts of the steps until now. The last two calls count."""
        self.charge()
        self._halves = [*self._halves[-1:], (steps, self.times_ns.copy(), self.counts.copy())]

    def close(self) -> int:
        """Charge the time until now. Return the time since the start, which is the sum of all entries."""
        return self.charge() - self.start_ns

    def entries(self, steps: int = 0) -> tuple[AccountEntry, ...]:
        """Return the entries that took time or were entered, in the order in which they were made.

        Args:
            steps: Steps of the fit, to find its first half.
        """
        halves = [half for half in self._halves if 2 * half[0] <= steps]
        early_ns, early_counts = (dict(enumerate(early)) for early in (halves[-1][1:] if halves else ([], [])))
        return tuple(
            AccountEntry(
                group,
                name,
                self.times_ns[number],
                self.counts[number],
                early_ns.get(number, 0),
                early_counts.get(number, 0),
            )
            for (group, name), number in self._numbers.items()
            if self.times_ns[number] or self.counts[number]
        )
