"""A stack of nested actions that divides time among them."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident

from lightning_perf.run_files.fit.account import AccountEntry, Group

MAX_EVENTS = 2048
"""Numbers of events, two for each, that are kept before they are read: some forty steps."""

_SAME, _LEFT, _REPLACED, _BASE = -1, -2, -3, -4


class TimeStack:
    """Divides the time of one thread among nested actions.

    Each action gets the time in which it is the innermost one. Every reading of the clock ends one interval and starts
    the next, so the times of all actions add up to the whole time, to the nanosecond. Calls from other threads are
    ignored.

    `enter` and `leave` run a dozen times per training step, so they only note the event. The notes of many steps are
    then read together, in `settle`.

    Attributes:
        phases: The entries of the phases of the loop, by the number of the phase. `enter_phase` uses them. A negative
            entry stands for the innermost action.
    """

    def __init__(self, group: Group, name: str, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._thread = get_ident()
        self._numbers: dict[tuple[Group, str], int] = {}
        self._times_ns: list[int] = []
        self._counts: list[int] = []
        self.phases: list[int] = []
        self._halves: list[tuple[int, list[int], list[int]]] = []
        self._stack = [self.entry(group, name)]
        self._events: list[int] = []
        self._note = self._events.extend
        self.start_ns = self._since_ns = now_ns()

    @property
    def times_ns(self) -> list[int]:
        """Time of each entry until the last event, by the entry's number."""
        self.settle()
        return self._times_ns

    @property
    def counts(self) -> list[int]:
        """How often each entry was entered."""
        self.settle()
        return self._counts

    @property
    def base(self) -> int:
        """The outermost entry."""
        self.settle()
        return self._stack[0]

    @property
    def depth(self) -> int:
        """Actions inside the outermost entry."""
        self.settle()
        return len(self._stack) - 1

    @property
    def is_own_thread(self) -> bool:
        """Whether the current thread is the one that the stack follows."""
        return get_ident() == self._thread

    def entry(self, group: Group, name: str) -> int:
        """Return the number of an entry. The first call makes it."""
        number = self._numbers.setdefault((group, name), len(self._times_ns))
        if number == len(self._times_ns):
            self._times_ns.append(0)
            self._counts.append(0)
        return number

    def enter(self, number: int) -> None:
        """Start an action."""
        if get_ident() == self._thread:
            self._note((number, self._now_ns()))

    def enter_phase(self, phase: int) -> None:
        """Start the action that stands for a phase at present."""
        if get_ident() == self._thread:
            self._note((self.phases[phase], self._now_ns()))

    def leave(self) -> None:
        """End the innermost action."""
        if get_ident() == self._thread:
            self._note((_LEFT, self._now_ns()))

    def replace(self, number: int) -> None:
        """End the innermost action and start another with the same reading of the clock."""
        if get_ident() == self._thread:
            now_ns = self._now_ns()
            self._note((_REPLACED, now_ns, number, now_ns))
            if len(self._events) > MAX_EVENTS:
                self.settle()

    def set_base(self, number: int, *, collapse: bool = False) -> None:
        """Replace the outermost entry, and end all actions inside if they collapse."""
        self._note((_BASE, self._now_ns(), number, collapse))

    def charge(self) -> int:
        """Charge the time until now to the innermost action, and return the reading of the clock."""
        now_ns = self._now_ns()
        self.settle()
        self._times_ns[self._stack[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns
        return now_ns

    def settle(self) -> None:
        """Charge the time until the last event."""
        if not self._events:
            return
        outer, times_ns, counts, since_ns = self._stack, self._times_ns, self._counts, self._since_ns
        push, pop, top = outer.append, outer.pop, outer.pop()
        numbers = iter(self._events)
        events = zip(numbers, numbers, strict=True)
        for number, now_ns in events:
            times_ns[top] += now_ns - since_ns
            since_ns = now_ns
            if number >= 0:
                counts[number] += 1
                push(top)
                top = number
            elif number == _LEFT:
                if outer:
                    top = pop()
            elif number == _SAME:
                push(top)
            elif number == _REPLACED:
                if outer:
                    top = pop()
                else:
                    next(events)  # there is nothing to replace
            else:
                push(top)
                outer[0], collapse = next(events)
                if collapse:
                    del outer[1:]
                top = pop()
        push(top)
        self._events.clear()
        self._since_ns = since_ns

    def mark(self, steps: int) -> None:
        """Keep the times and counts of the steps until now. The last two calls count."""
        self.charge()
        self._halves = [*self._halves[-1:], (steps, self._times_ns.copy(), self._counts.copy())]

    def close(self) -> int:
        """Charge the time until now. Return the time since the start, which is the sum of all entries."""
        return self.charge() - self.start_ns

    def entries(self, steps: int = 0) -> tuple[AccountEntry, ...]:
        """Return the entries that took time or were entered, in the order in which they were made.

        Args:
            steps: Steps of the fit, to find its first half.
        """
        self.settle()
        halves = [half for half in self._halves if 2 * half[0] <= steps]
        early_ns, early_counts = (dict(enumerate(early)) for early in (halves[-1][1:] if halves else ([], [])))
        return tuple(
            AccountEntry(
                group,
                name,
                self._times_ns[number],
                self._counts[number],
                early_ns.get(number, 0),
                early_counts.get(number, 0),
            )
            for (group, name), number in self._numbers.items()
            if self._times_ns[number] or self._counts[number]
        )
