from dataclasses import replace

import numpy as np

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from tests.support.trace_builder import TraceBuilder


def steps(*complete):
    builder = TraceBuilder()
    for n in range(len(complete)):
        builder.step(n, n * 100, 80)
    trace = builder.build()
    trace.__dict__["steps"] = replace(trace.steps, complete=np.array(complete))
    return trace


def test_incomplete_steps_are_left_out():
    trace = steps(True, True, False)
    assert averaged_steps(trace).tolist() == [True, True, False]
    times = np.array([-1, 0, 79_999, 80_000, 100_000, 250_000])
    assert in_averaged_steps(trace, times).tolist() == [False, True, True, False, True, False]


def test_without_a_complete_step_all_count():
    assert averaged_steps(steps(False, False)).tolist() == [True, True]
