from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.model.memory import AliveBlocks, alive_blocks
from tests.support.trace_builder import FETCH, TraceBuilder

ENGINE = 2000


def alive(trace, moment=None):
    rows = np.flatnonzero(trace.memory.device == 0)
    return alive_blocks(trace, rows, len(rows) - 1 if moment is None else moment)


def test_blocks_are_told_apart_by_birth_and_death():
    builder = (
        TraceBuilder()
        .annotation(FETCH, 0, 10)
        .memory(5, 1, address=1)
        .op("aten::conv2d", 20, 20)
        .op("aten::empty", 22, 4)
        .memory(24, 2, address=2)  # freed in backward
        .memory(25, 4, address=3)  # freed in forward
        .memory(26, 8, address=4)  # not freed
        .op("ConvolutionBackward0", 60, 20, thread=ENGINE, forward_thread=1, sequence=1)
        .memory(62, 16, address=5, thread=ENGINE)  # freed after the optimizer began
        .memory(63, 32, address=6, thread=ENGINE)  # freed before
        .memory(45, 0, address=99)
        .annotation("Optimizer.step#SGD.step", 100, 50)
        .op("aten::zeros_like", 105, 10)
        .memory(110, 64, address=7)  # not freed
        .memory(112, 128, address=8)  # freed in the step
        .memory(50, -4, address=3)
        .memory(70, -2, address=2, thread=ENGINE)
        .memory(85, -32, address=6)
        .memory(140, -128, address=8)
        .memory(200, -16, address=5)
    )
    trace = builder.build()
    times = trace.memory.time_ns.tolist()
    assert alive(trace, times.index(26_000)) == (
        AliveBlocks("aten::conv2d", "unknown", 1, 8),
        AliveBlocks("aten::conv2d", "temporaries", 1, 4),
        AliveBlocks("aten::conv2d", "activations", 1, 2),
        AliveBlocks(None, "inputs", 1, 1),
    )
    assert alive(trace, times.index(63_000))[:2] == (
        AliveBlocks("ConvolutionBackward0", "temporaries", 1, 32),
        AliveBlocks("ConvolutionBackward0", "gradients", 1, 16),
    )
    assert alive(trace, times.index(112_000))[:2] == (
        AliveBlocks("aten::zeros_like", "temporaries", 1, 128),
        AliveBlocks("aten::zeros_like", "optimizer_state", 1, 64),
    )


def test_what_a_closure_of_the_optimizer_allocates_is_not_the_optimizers():
    builder = TraceBuilder().step(1, 0, 300).annotation("Optimizer.step#SGD.step", 10, 240)
    builder.op("aten::conv2d", 20, 20).memory(24, 1, address=1)  # freed in backward
    builder.op("autograd::engine::evaluate_function: ConvolutionBackward0", 60, 20, thread=ENGINE)
    builder.memory(62, 2, address=2, thread=ENGINE)  # alive when the update begins
    builder.memory(70, -1, address=1, thread=ENGINE)
    builder.op("aten::zeros_like", 105, 10).memory(110, 4, address=3)  # not freed
    trace = builder.memory(260, -2, address=2).build()
    assert {row.category: row.bytes for row in alive(trace, trace.memory.time_ns.tolist().index(24_000))} == {
        "activations": 1
    }
    assert {row.category: row.bytes for row in alive(trace, trace.memory.time_ns.tolist().index(110_000))} == {
        "gradients": 2,
        "optimizer_state": 4,
    }


def test_inference_has_no_activations():
    trace = TraceBuilder().op("aten::mm", 0, 10).memory(5, 10, address=1).memory(20, -10, address=1).build()
    assert alive(trace, 0) == (AliveBlocks("aten::mm", "temporaries", 1, 10),)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.integers(0, 19))
def test_alive_blocks_against_a_replay(addresses, moment):
    builder, held, levels = TraceBuilder(), {}, []
    for n, address in enumerate(addresses):
        size = -held.pop(address) if address in held else 2**n
        if size > 0:
            held[address] = size
        builder.memory(n, size, address=address)
        levels.append(dict(held))
    moment = min(moment, len(addresses) - 1)
    found = alive(builder.build(), moment)
    assert sum(row.bytes for row in found) == sum(levels[moment].values())
    assert sum(row.blocks for row in found) == len(levels[moment])
