"""Attention: the implementation that ran, its inputs and its time. Tokens and FLOPs of a language model."""

from __future__ import annotations

from collections import defaultdict
from math import prod
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import (
    averaged_steps,
    averaged_time,
    in_averaged_host_steps,
    json_list,
    json_shapes,
    merge,
    sum_by,
)
from lightning_perf.analysis.kernels.efficiency import Efficiency
from lightning_perf.analysis.kernels.flops import FORMULAS, count_flops
from lightning_perf.analysis.model.modules import forward_operator, operator_costs
from lightning_perf.analysis.steps.breakdown import host_phases
from lightning_perf.trace.columns import NO_ROW, Int64Array
from lightning_perf.trace.indexing import innermost_marked
from lightning_perf.trace.trace import Trace

Implementation = Literal["flash", "memory-efficient", "cuDNN", "math", "written out"]

LEAST_COVERAGE = 0.9
"""Below this share of the product kernels' time with known FLOPs, FLOPs per token would mislead."""

SDPA = "aten::scaled_dot_product_attention"

IMPLEMENTATIONS: dict[str, Implementation] = {
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "memory-efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cuDNN",
    "aten::_scaled_dot_product_attention_math": "math",
    "flash_attn::_flash_attn_forward": "flash",
    "flash_attn::_flash_attn_varlen_forward": "flash",
    "FlashAttnFunc": "flash",
    "FlashAttnVarlenFunc": "flash",
    "xformers_flash::flash_fwd": "flash",
    "xformers::efficient_attention_forward_cutlass": "memory-efficient",
}
"""The implementation by operator: those of `torch.nn.functional.scaled_dot_product_attention`, flash-attn, xformers."""

OPTIONS = {
    SDPA: (3, 4, 5),
    "aten::_scaled_dot_product_flash_attention": (None, 3, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (5, 3, 4),
    "aten::_scaled_dot_product_efficient_attention": (3, 5, 6),
    "aten::_scaled_dot_product_cudnn_attention": (3, 5, 6),
}
"""The places of the mask, the dropout and the flag of a causal mask among the inputs. Compiled code calls the last four
without the first. None: takes no mask."""

BACKWARD = "_backward"
"""The end of the name of the operator that computes the gradients of another one."""

SOFTMAX = "aten::_softmax"
PRODUCTS = frozenset({"aten::bmm", "aten::baddbmm"})
MASKED_FILLS = frozenset({"aten::masked_fill", "aten::masked_fill_", "aten::where"})
SUMS = frozenset({"aten::add", "aten::add_", "aten::sub", "aten::sub_"})
DROPOUTS = frozenset({"aten::dropout", "aten::dropout_", "aten::native_dropout", "aten::bernoulli_"})
TRIANGLES = {"aten::tril": "0", "aten::triu": "1"}
"""Operators that make a causal mask, and the diagonal at which they do."""


class AttentionKind(Struct, frozen=True):
    """The attention calls of one implementation with the same inputs.

    Attributes:
        implementation: ``flash``, ``memory-efficient`` or ``cuDNN`` for fused kernels, ``math`` for PyTorch's
            composition of products and softmax, ``written out`` for such a composition in the model's own code.
        type: Type of the queries as recorded, e.g. ``float`` or ``c10::BFloat16``; empty if not recorded.
        query: Shape of the queries, ``(batch, heads, time, size)``; of the first product for attention that is
            written out; empty if not recorded.
        keys: Number of keys that each query is compared with; 0 if not recorded.
        mask: Whether a mask was given as a tensor, or applied to the scores in the model's own code; ``None`` if
            unknown.
        dropout: Probability of dropout; ``None`` if unknown.
        causal: Whether ``is_causal`` was set, or a causal mask of that size was made and one was applied; ``None`` if
            unknown.
        calls: Calls in the forward passes of all averaged steps, without those that the backward repeats.
        time_ns: Time of all calls and of their backward: of the device work that they launch, or on the host without
            a device.
        product_ns: The part of it in matrix products. 0 for fused kernels, which are not divided.
    """

    implementation: Implementation
    type: str
    query: tuple[int, ...]
    keys: int
    mask: bool | None
    dropout: float | None
    causal: bool | None
    calls: int
    time_ns: int
    product_ns: int

    @property
    def forward_flops(self) -> int:
        """FLOPs of the two products in the forward passes, without regard to causal masks; 0 for unknown shapes."""
        return self.calls * 4 * prod(self.query) * self.keys if self.query else 0


class Attention(Struct, frozen=True):
    """The attention of the averaged steps.

    Attributes:
        kinds: Calls by implementation and inputs, the most time first.
        steps: Steps that the figures are over.
        on_device: Whether times are of device work; otherwise they are of the host.
        with_backward: Whether the backward of any call was recorded, so that times include it.
    """

    kinds: tuple[AttentionKind, ...]
    steps: int
    on_device: bool
    with_backward: bool = True


_Key: TypeAlias = tuple[Implementation, str, tuple[int, ...], int, "bool | None", "float | None", "bool | None"]


class _Call(Struct, frozen=True):
    """One call: the operators of one thread within these times."""

    thread: int
    start_ns: int
    end_ns: int
    key: _Key


def attention(trace: Trace) -> Attention | None:
    """Find the attention of a training and its time.

    A softmax between two batched matrix products of fitting shapes counts as attention that is written out.
    """
    steps = int(averaged_steps(trace).sum())
    if not len(trace.operators) or not steps:
        return None
    calls = _fused_calls(trace)
    calls += _written_out(trace, calls)
    if not calls:
        return None
    calls.sort(key=lambda call: (call.thread, call.start_ns))
    owner, with_backward = _owners(trace, calls)
    times, products = _times(trace, owner, calls)
    repeated = host_phases(trace)["backward"].contains(np.array([call.start_ns for call in calls]))
    found: dict[object, list[int]] = defaultdict(lambda: [0, 0, 0])
    for call, again, time_ns, product_ns in zip(
        calls, repeated.tolist(), times.tolist(), products.tolist(), strict=True
    ):
        row = found[call.key]
        row[0] += not again
        row[1] += time_ns
        row[2] += 0 if call.key[0] in ("flash", "memory-efficient", "cuDNN") else product_ns
    keys = {call.key: call.key for call in calls}
    kinds = [AttentionKind(*key, *found[key]) for key in keys]
    kinds.sort(key=lambda kind: (-kind.time_ns, kind.implementation, kind.query))
    return Attention(tuple(kinds), steps, bool(trace.device.is_compute.any()), with_backward)


def _fused_calls(trace: Trace) -> list[_Call]:
    """Return the calls of operators that compute attention, without those inside another one."""
    table, parents = trace.operators, trace.links.operator_parent
    named = trace.names_where(IMPLEMENTATIONS.__contains__)[table.name]
    rows = np.flatnonzero(named & in_averaged_host_steps(trace, table.start_ns))
    calls = []
    for row in rows.tolist():
        above = int(parents[row])
        while above != NO_ROW and trace.names[table.name[above]] != SDPA and not named[above]:
            above = int(parents[above])
        if above != NO_ROW and named[above]:
            continue
        types, query, keys = _types(trace, row), _shape(trace, row, 0), _shape(trace, row, 1)
        mask, dropout, causal = _options(trace, above if above != NO_ROW else row)
        key = (
            IMPLEMENTATIONS[trace.names[table.name[row]]],
            types[0] if types else "",
            query,
            keys[-2] if len(keys) > 1 else 0,
            mask,
            dropout,
            causal,
        )
        calls.append(_Call(int(table.thread[row]), int(table.start_ns[row]), int(table.end_ns[row]), key))
    return calls


def _options(trace: Trace, row: int) -> tuple[bool | None, float | None, bool | None]:
    """Return mask, dropout and causality of a call, as far as its operator records them."""
    table = trace.operators
    places = OPTIONS.get(trace.names[table.name[row]])
    shapes = json_list(trace.shape_lists[table.input_shapes[row]])
    values = _values(trace, row)
    if places is None or not shapes:
        return None, None, None
    at_mask, at_dropout, at_causal = places
    mask = False if at_mask is None else None
    if at_mask is not None and len(shapes) > at_mask:
        mask = isinstance(shapes[at_mask], list) and len(shapes[at_mask]) > 0
    dropout = causal = None
    if len(values) > max(at_dropout, at_causal):
        try:
            dropout = float(values[at_dropout])
        except ValueError:
            dropout = None
        causal = {"True": True, "False": False}.get(values[at_causal])
    return mask, dropout, causal


def _written_out(trace: Trace, fused: list[_Call]) -> list[_Call]:
    """Find a softmax over scores that a batched product made and that the next one multiplies with the values."""
    table = trace.operators
    counted = in_averaged_host_steps(trace, table.start_ns)
    softmax = np.flatnonzero(counted & trace.names_where(lambda name: name == SOFTMAX)[table.name])
    products = np.flatnonzero(counted & trace.names_where(PRODUCTS.__contains__)[table.name])
    triangles = _triangles(trace)
    calls = []
    for thread in np.unique(table.thread[softmax]).tolist():
        taken = merge(
            np.array([call.start_ns for call in fused if call.thread == thread], dtype=np.int64),
            np.array([call.end_ns for call in fused if call.thread == thread], dtype=np.int64),
        )
        rows = softmax[table.thread[softmax] == thread]
        rows = rows[~taken.contains(table.start_ns[rows])]
        own = products[table.thread[products] == thread]
        places = np.searchsorted(table.start_ns[own], table.start_ns[rows])
        for row, at in zip(rows.tolist(), places.tolist(), strict=True):
            if 0 < at < len(own):
                call = _composition(trace, int(own[at - 1]), row, int(own[at]), triangles)
                calls += [call] if call is not None else []
    return calls


def _triangles(trace: Trace) -> set[tuple[int, ...]]:
    """Return the sizes of the causal masks that the averaged steps make."""
    table = trace.operators
    rows = np.flatnonzero(
        trace.names_where(TRIANGLES.__contains__)[table.name] & in_averaged_host_steps(trace, table.start_ns)
    )
    sizes = set()
    for row in rows.tolist():
        if _values(trace, row)[1:2] == [TRIANGLES[trace.names[table.name[row]]]]:
            sizes.add(_shape(trace, row, 0)[-2:])
    return sizes


def _composition(trace: Trace, before: int, softmax: int, after: int, triangles: set[tuple[int, ...]]) -> _Call | None:
    """Return the attention that a product, a softmax and another product compute; ``None`` if their shapes differ."""
    table = trace.operators
    scores = _shape(trace, softmax, 0)
    first, second = _factors(trace, before), _factors(trace, after)
    if first is None or second is None or not scores:
        return None
    (batch, queries, size), keys = first[0], first[1][-1]
    if (batch * queries * keys, keys) != (prod(scores), scores[-1]) or second[0] != (batch, queries, keys):
        return None
    types = _types(trace, before)[_factor(trace, before) :]
    mask = _is_masked(trace, before, softmax, keys)
    causal = mask and (True if (queries, keys) in triangles else None)
    dropout = None if _between(trace, softmax, after, DROPOUTS) else 0.0
    key: _Key = ("written out", types[0] if types else "", (batch, queries, size), keys, mask, dropout, causal)
    return _Call(int(table.thread[before]), int(table.start_ns[before]), int(table.end_ns[after]), key)


def _between(trace: Trace, before: int, after: int, names: frozenset[str]) -> list[int]:
    """Return the operators with some names between two others on their thread."""
    table = trace.operators
    return [
        row
        for row in range(before + 1, after)
        if table.thread[row] == table.thread[before] and trace.names[table.name[row]] in names
    ]


def _is_masked(trace: Trace, product: int, softmax: int, keys: int) -> bool | None:
    """Return whether a mask or bias changes the scores before the softmax; None if the recording does not say."""
    if _between(trace, product, softmax, MASKED_FILLS):
        return True
    if any(_shape(trace, row, 1)[-1:] == (keys,) for row in _between(trace, product, softmax, SUMS)):
        return True
    if not _factor(trace, product):
        return False
    beta = _values(trace, product)[3:4]
    return beta[0] not in ("0", "0.", "0.0") if beta and beta[0] else None  # the bias counts `beta` times


def _factor(trace: Trace, row: int) -> int:
    """Return the position of the first factor among the inputs of a batched product."""
    return 1 if trace.names[trace.operators.name[row]] == "aten::baddbmm" else 0


def _factors(trace: Trace, row: int) -> tuple[tuple[int, int, int], tuple[int, ...]] | None:
    """Return the shapes of the two factors of a batched product."""
    skipped = _factor(trace, row)
    left, right = _shape(trace, row, skipped), _shape(trace, row, skipped + 1)
    return ((left[0], left[1], left[2]), right) if len(left) == len(right) == 3 else None


def _shape(trace: Trace, row: int, place: int) -> tuple[int, ...]:
    shapes = json_shapes(trace.shape_lists[trace.operators.input_shapes[row]])
    return shapes[place] if place < len(shapes) else ()


def _types(trace: Trace, row: int) -> list[str]:
    return [str(kind) for kind in json_list(trace.type_lists[trace.operators.input_types[row]])]


def _values(trace: Trace, row: int) -> list[str]:
    return [str(value) for value in json_list(trace.value_lists[trace.operators.input_values[row]])]


def _owners(trace: Trace, calls: list[_Call]) -> tuple[Int64Array, bool]:
    """Return for each operator row its call, or `NO_ROW`, and whether operators of the backward are among them."""
    table = trace.operators
    owner = np.full(len(table), NO_ROW, dtype=np.int64)
    for thread in {call.thread for call in calls}:
        places = [place for place, call in enumerate(calls) if call.thread == thread]
        starts = np.array([calls[place].start_ns for place in places])
        ends = np.array([calls[place].end_ns for place in places])
        rows = np.flatnonzero(table.thread == thread)
        at = np.searchsorted(starts, table.start_ns[rows], side="right") - 1
        inside = (at >= 0) & (table.end_ns[rows] <= ends[np.maximum(at, 0)])
        owner[rows[inside]] = np.array(places)[at[inside]]
    forward, _ = forward_operator(trace)
    if forward is not None:
        nodes = np.flatnonzero((forward != NO_ROW) & (owner == NO_ROW))
        owner[nodes] = owner[forward[nodes]]
    else:
        nodes = np.zeros(0, dtype=np.int64)
    compiled = _unlinked_backward(trace, calls, owner)
    owner[list(compiled)] = list(compiled.values())
    return owner, bool(compiled) or bool((owner[nodes] != NO_ROW).any())


def _unlinked_backward(trace: Trace, calls: list[_Call], owner: Int64Array) -> dict[int, int]:
    """Return a call with the same inputs for each backward that nothing links to its forward, as in compiled code."""
    table = trace.operators
    backward = {name + BACKWARD: kind for name, kind in IMPLEMENTATIONS.items()}
    rows = np.flatnonzero(trace.names_where(backward.__contains__)[table.name])
    rows = rows[in_averaged_host_steps(trace, table.start_ns[rows])]
    rows = rows[innermost_marked(trace.links.operator_parent, rows, owner != NO_ROW) == NO_ROW]
    places = {(call.key[0], *call.key[2:4]): place for place, call in enumerate(calls)}
    found = {}
    for row in rows.tolist():
        query, keys = _shape(trace, row, 1), _shape(trace, row, 2)  # after the gradient of the output
        inputs = (backward[trace.names[table.name[row]]], query, keys[-2] if len(keys) > 1 else 0)
        if inputs in places:
            found[row] = places[inputs]
    return found


def _times(trace: Trace, owner: Int64Array, calls: list[_Call]) -> tuple[Int64Array, Int64Array]:
    """Return the time of each call with its backward, and the part in products."""
    table, parents, cost = trace.operators, trace.links.operator_parent, operator_costs(trace)
    rows = np.arange(len(table))
    within = innermost_marked(parents, rows, owner != NO_ROW)
    is_product = trace.names_where(FORMULAS.__contains__)[table.name]
    attends = within != NO_ROW
    multiplies = attends & (innermost_marked(parents, rows, is_product) != NO_ROW)
    total, products = (sum_by(owner[within[kind]], cost[kind], len(calls)) for kind in (attends, multiplies))
    return total, products


class LanguageModel(Struct, frozen=True):
    """The figures of a training on token sequences. Tokens include padding, because the device computes them, too.

    Attributes:
        tokens_per_step: Tokens per step of this process.
        tokens_per_second: Tokens per step divided by the mean step time under the profiler; ``None`` without steps.
        padding: Share of the tokens that are padding, 0 to 1; ``None`` if the batches do not mark padding.
        beyond_longest: Share of the tokens in columns of a batch that are padding in all of its rows; likewise.
        parameters: Parameters of the model without tables of embeddings that are only read; ``None`` if unknown.
        flops_per_token: Counted FLOPs of matrix products per token, forward and backward. Recomputed products count.
            ``None`` if the FLOPs of less than 90 % of the products' time are known.
        formula_flops_per_token: FLOPs per token by the formula 6N + 12·L·d·T; ``None`` if N is unknown.
        attention_flops_per_token: The second term of the formula, from the recorded shapes; 0 if no attention was
            found.
        formula_mfu: MFU with the FLOPs of the formula instead of the counted ones; ``None`` without an MFU.
    """

    tokens_per_step: float
    tokens_per_second: float | None
    padding: float | None
    beyond_longest: float | None
    parameters: int | None
    flops_per_token: float | None
    formula_flops_per_token: float | None
    attention_flops_per_token: float
    formula_mfu: float | None


def language_model(trace: Trace, efficiency: Efficiency | None, found: Attention | None) -> LanguageModel | None:
    """Relate a recording to the tokens that its steps trained on."""
    counted = trace.metadata.tokens
    steps = int(averaged_steps(trace).sum())
    if counted is None or not steps:
        return None
    per_step = counted.tokens / counted.steps
    wall_ns = averaged_time(trace).length_ns
    tokens = per_step * steps
    count = count_flops(trace)
    flops, coverage = sum(count.by_arithmetic(count.least).values()), count.coverage
    known = flops > 0 and not trace.problems.lacks_work and (coverage is None or coverage >= LEAST_COVERAGE)
    attention = 3 * sum(kind.forward_flops for kind in found.kinds) / tokens if found is not None else 0.0
    per_token = flops / tokens if known else None
    formula = None if counted.parameters is None else 6 * counted.parameters + attention
    hfu = efficiency.hfu if efficiency is not None else None
    return LanguageModel(
        tokens_per_step=per_step,
        tokens_per_second=tokens / wall_ns * 1e9 if wall_ns and not trace.problems.lacks_work else None,
        padding=counted.padding / counted.counted if counted.counted else None,
        beyond_longest=counted.beyond_longest / counted.counted if counted.counted else None,
        parameters=counted.parameters,
        flops_per_token=per_token,
        formula_flops_per_token=formula,
        attention_flops_per_token=attention,
        formula_mfu=hfu * formula / per_token if hfu is not None and formula is not None and per_token else None,
    )
