"""Launch-to-device links: device work ─► the runtime call that started it ─► the operator around that call."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.trace.columns import BoolArray, Int32Array, Trace

__all__ = ["Links", "find_links"]


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

    @property
    def device_operator(self) -> Int32Array:
        """For each device row, the innermost operator that launched it."""
        raise NotImplementedError


def find_links(trace: Trace) -> Links:
    """Link device work to runtime calls by correlation, and those to operators by thread and time."""
    raise NotImplementedError
