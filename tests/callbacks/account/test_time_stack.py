from __future__ import annotations

import random
import threading

from lightning_perf.callbacks.account.time_stack import TimeStack


def test_random_calls_add_up_and_agree_with_an_independent_count() -> None:
    """A second implementation: a list of intervals, each with the innermost action of that moment."""
    random.seed(4)
    now_ns = 0
    stack = TimeStack("training steps", "base", lambda: now_ns)
    names = [f"callback {number}" for number in range(5)]
    numbers = [stack.entry("callbacks", name) for name in names]
    stack.phases = [numbers[0], -1]
    open_names, expected = ["base"], dict.fromkeys(["base", "other", *names], 0)
    for _ in range(2000):
        step_ns = random.randrange(50)
        now_ns += step_ns
        expected[open_names[-1]] += step_ns
        match random.randrange(6):
            case 0:
                number = random.randrange(5)
                stack.enter(numbers[number])
                open_names.append(names[number])
            case 1:
                stack.enter_phase(0)
                open_names.append(names[0])
            case 2:
                stack.enter_phase(1)
                open_names.append(open_names[-1])
            case 3:
                number = random.randrange(5)
                stack.replace(numbers[number])
                if len(open_names) > 1:
                    open_names[-1] = names[number]
            case 4:
                stack.leave()
                if len(open_names) > 1:
                    open_names.pop()
            case _:
                base = random.choice(["base", "other"])
                stack.set_base(stack.entry("training steps", base))
                shown = [base, *open_names[1:]]
                open_names = shown
    # An action of a phase that stands for its surroundings keeps the entry of the base at its start.
    assert stack.close() == now_ns == sum(stack.times_ns) == sum(expected.values())
    found = {entry.name: entry.time_ns for entry in stack.entries()}
    assert found == {name: time_ns for name, time_ns in expected.items() if time_ns}


def test_calls_of_other_threads_are_ignored() -> None:
    now_ns = 0
    stack = TimeStack("training steps", "base", lambda: now_ns)
    number = stack.entry("callbacks", "other")
    thread = threading.Thread(target=lambda: (stack.enter(number), stack.leave(), stack.replace(number)))
    thread.start()
    thread.join()
    assert stack.depth == 0
    assert stack.counts[number] == 0


def test_actions_that_nobody_ended_collapse() -> None:
    stack = TimeStack("training steps", "base", lambda: 0)
    stack.enter(stack.entry("callbacks", "x"))
    stack.set_base(stack.entry("epoch boundaries", ""), collapse=True)
    assert stack.depth == 0
    stack.leave()
    assert stack.depth == 0
    assert stack.entry("callbacks", "x") == stack.entry("callbacks", "x")
