"""What must hold for every trace that the reader returns, whatever the file was."""

import numpy as np

from lightning_perf.trace.trace import Trace


def assert_consistent(trace: Trace) -> None:
    """Columns of one length, in order, with codes and rows that exist, and steps that do not overlap."""
    for table in (*trace.tables(), trace.collectives, trace.memory):
        assert {len(getattr(table, column)) for column in table.__struct_fields__} == {len(table)}
    for table in trace.tables():
        assert (table.end_ns >= table.start_ns).all()
        same = table.start_ns[1:] == table.start_ns[:-1]
        assert ((table.start_ns[1:] > table.start_ns[:-1]) | (same & (table.end_ns[1:] <= table.end_ns[:-1]))).all()
        assert ((table.name >= 0) & (table.name < len(trace.names))).all()
        if hasattr(table, "thread"):
            assert ((table.thread >= 0) & (table.thread < len(trace.threads))).all()
    assert (np.diff(trace.memory.time_ns) >= 0).all()
    assert (trace.collectives.device_row < len(trace.device)).all()
    links = trace.links
    for rows, target in (
        (links.device_runtime, trace.runtime),
        (links.device_operator, trace.operators),
        (links.runtime_operator, trace.operators),
        (links.operator_parent, trace.operators),
    ):
        assert ((rows >= -1) & (rows < len(target))).all()
    steps = trace.steps
    assert len(steps) >= 1
    assert (steps.end_ns >= steps.start_ns).all()
    assert (steps.start_ns[1:] >= steps.end_ns[:-1]).all()
    assert 0 <= steps.thread < max(len(trace.threads), 1)
