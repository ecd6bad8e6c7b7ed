"""The rule for optimizers with a state that takes much of a scarce memory."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.memory.scarcity import scarce_devices
from lightning_perf.units import format_bytes, format_share

__all__ = ["optimizer_state"]

LIMIT = 0.3
"""Share of the tensors at the peak from which the state is worth a change."""

EIGHT_BIT = 0.75
"""Part of an FP32 state that an 8-bit optimizer saves."""


def optimizer_state(analysis: RankAnalysis) -> Finding | None:
    """Find devices with scarce memory and a large state of the optimizer.

    No saving of time is estimated. An 8-bit state takes a quarter of an FP32 state, and sharding divides the state by
    the number of ranks.
    """
    for device in scarce_devices(analysis):
        state, parameters = (device.memory.part_bytes(part) for part in ("optimizer state", "parameters"))
        if state < LIMIT * device.tensor_bytes:
            continue
        ratio = f" That is {state / parameters:.1f} times the parameters." if parameters else ""
        share = format_share(state / device.tensor_bytes)
        world = analysis.metadata.world_size or 1
        sharded = (
            f" Sharded over {world} ranks, each rank keeps {format_bytes(state / world)} of it." if world > 1 else ""
        )
        return Finding(
            kind="optimizer-state",
            severity="moderate",
            title=f"Optimizer state takes {format_bytes(state)}, {share} of the bytes in tensors",
            evidence=(
                f"{device.describe()}{ratio}",
                f"An 8-bit optimizer saves about {format_bytes(EIGHT_BIT * state)} of an FP32 state.{sharded}",
            ),
            action="Use an 8-bit optimizer such as torchao.optim.AdamW8bit in configure_optimizers. With several GPUs, "
            'shard the state: Trainer(strategy="fsdp"). fused=True avoids the temporary memory of the update.',
            saving_low_ms=None,
            saving_high_ms=None,
            model="",
            rank=analysis.rank,
        )
    return None
