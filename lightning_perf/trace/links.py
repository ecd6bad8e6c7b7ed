"""Launch-to-device links: device work ─► the runtime call that started it ─► the operator around that call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lightning_perf.trace.columns import NO_ROW, BoolArray, Int32Array, Trace
from lightning_perf.trace.nesting import enclosing_rows, parent_rows

__all__ = ["Links", "find_links", "is_launch_name"]

_LAUNCH_PREFIXES = (
    "cudaLaunch",
    "cuLaunch",
    "cudaGraphLaunch",
    "cuGraphLaunch",
    "hipLaunch",
    "hipExtLaunch",
    "hipModuleLaunch",
    "hipExtModuleLaunch",
    "hipHccModuleLaunch",
    "hipGraphLaunch",
    "urEnqueueKernelLaunch",
    "zeCommandListAppendLaunch",
)


def is_launch_name(name: str) -> bool:
    """Whether a runtime or driver call of this name starts a kernel or a graph, whatever was recorded of its work.

    Memsets are not among them: cuBLAS asks for many of no bytes, which start nothing.

    Example:
        >>> is_launch_name("cuLaunchKernelEx"), is_launch_name("cudaMemcpyAsync"), is_launch_name("cudaLaunchHostFunc")
        (True, False, False)
    """
    return name.startswith(_LAUNCH_PREFIXES) and "HostFunc" not in name


@dataclass(frozen=True, eq=False)
class Links:
    """Row references between the tables of a `Trace`; `NO_ROW` where there is none.

    Attributes:
        device_runtime: For each device row, the runtime row that started it.
        runtime_operator: For each runtime row, the innermost operator row that contains it on its thread.
        operator_parent: For each operator row, the operator row directly around it on its thread.
        is_launch: For each runtime row, whether it is a kernel launch: its device work is a kernel or memset, or
            its device work was not recorded and its name is a known launch call.
    """

    device_runtime: Int32Array
    runtime_operator: Int32Array
    operator_parent: Int32Array
    is_launch: BoolArray

    @cached_property
    def device_operator(self) -> Int32Array:
        """For each device row, the innermost operator that launched it."""
        linked = self.device_runtime >= 0
        found = np.full(len(self.device_runtime), NO_ROW, dtype=np.int32)
        found[linked] = self.runtime_operator[self.device_runtime[linked]]
        return found


def find_links(trace: Trace) -> Links:
    """Link device work to runtime calls by correlation, and those to operators by thread and time.

    ``External id`` is not used: on many recordings it matches no kernel at all, and where it matches, containment
    finds the same operator.

    Args:
        trace: The trace.

    Returns:
        The links, one row a row of the trace's tables.
    """
    device_runtime = _device_runtime(trace)
    parents = parent_rows(trace.operators)
    return Links(
        device_runtime=device_runtime,
        runtime_operator=enclosing_rows(trace.runtime, trace.operators, parents),
        operator_parent=parents,
        is_launch=_is_launch(trace, device_runtime),
    )


def _device_runtime(trace: Trace) -> Int32Array:
    """The call with the same correlation; of several (numbers restart in a later window) the nearest before."""
    device, runtime = trace.device, trace.runtime
    found = np.full(len(device), NO_ROW, dtype=np.int32)
    rows = np.flatnonzero(runtime.correlation > 0)
    wanted = np.flatnonzero(device.correlation > 0)
    if not len(rows) or not len(wanted):
        return found
    numbers, codes = np.unique(runtime.correlation[rows], return_inverse=True)
    at = np.minimum(np.searchsorted(numbers, device.correlation[wanted]), len(numbers) - 1)
    known = numbers[at] == device.correlation[wanted]
    wanted, at = wanted[known], at[known]
    # One key orders calls by number, then by time (table rows are in time order).
    span = len(runtime) + 1
    keys = codes.astype(np.int64) * span + rows
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    started = np.searchsorted(runtime.start_ns, device.start_ns[wanted], side="right")
    before = np.searchsorted(keys, at * span + started, side="left") - 1
    # A skewed clock can put the work before its call: then the first call of that number.
    nearest = np.where((before >= 0) & (keys[np.maximum(before, 0)] >= at * span), before, before + 1)
    found[wanted] = rows[nearest]
    return found


def _is_launch(trace: Trace, device_runtime: Int32Array) -> BoolArray:
    linked = device_runtime >= 0
    has_work = np.zeros(len(trace.runtime), dtype=np.bool_)
    has_work[device_runtime[linked]] = True
    starts_work = np.zeros(len(trace.runtime), dtype=np.bool_)
    starts_work[device_runtime[linked & ~trace.device.is_copy]] = True
    if not len(trace.runtime):
        return starts_work
    return starts_work | (~has_work & trace.names_where(is_launch_name)[trace.runtime.name])
