"""The rule for activations that take much of a scarce memory, and the modules to checkpoint."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from lightning_perf.analysis.model.memory import ModuleActivations
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.memory.scarcity import scarce_devices
from lightning_perf.findings.savings import each
from lightning_perf.units import format_bytes, format_duration, format_share

__all__ = ["activations"]

LIMIT = 0.4
"""Share of the tensors at the peak from which the activations are worth a change."""

MIN_SAVED = 0.1
"""Share of the activations that checkpoints have to save at least."""


@dataclass(frozen=True)
class _Checkpoints:
    """Modules of one class that can be checkpointed."""

    class_name: str
    modules: tuple[ModuleActivations, ...]

    @property
    def saved_bytes(self) -> tuple[int, int]:
        """The least and the most that checkpoints save: all but one module at a time, and at least its inputs stay."""
        total = sum(module.bytes for module in self.modules)
        most = total - max(module.bytes for module in self.modules)
        return max(most - sum(module.largest_bytes for module in self.modules), 0), most


def activations(analysis: RankAnalysis) -> Finding | None:
    """Find devices with scarce memory and many activations, and the modules to checkpoint.

    Model: a checkpointed module keeps its inputs only and computes its activations again in the backward, one module at
    a time. The inputs of a module are taken as at most its largest activation. The cost is one more forward.
    """
    for device in scarce_devices(analysis):
        size = device.memory.part_bytes("activations")
        if size < LIMIT * device.tensor_bytes:
            continue
        share = format_share(size / device.tensor_bytes)
        best = _best(device.memory.activations)
        evidence = [device.describe()]
        action = (
            "Checkpoint the blocks of your model: checkpoint(self.block, x, use_reentrant=False) from "
            'torch.utils.checkpoint. Or use Trainer(precision="bf16-mixed"). To see the modules, record with '
            "PerfCallback(profile_memory=True, with_stack=True)."
        )
        if best is not None:
            low, high = best.saved_bytes
            cost_ns = _forward_ns(analysis, best)
            cost = "" if cost_ns is None else f" and costs about {format_duration(cost_ns)} {each(analysis)}"
            evidence.append(
                f"{len(best.modules)} modules of class {best.class_name} hold "
                f"{format_bytes(sum(module.bytes for module in best.modules))}. Checkpointing them saves "
                f"{format_bytes(low)} to {format_bytes(high)}{cost}."
            )
            action = (
                f"Checkpoint each {best.class_name}: checkpoint(module, x, use_reentrant=False) from "
                "torch.utils.checkpoint, or FSDPStrategy(activation_checkpointing_policy="
                f'{{{best.class_name}}}). Or use Trainer(precision="bf16-mixed").'
            )
        return Finding(
            kind="activations",
            severity="moderate",
            title=f"Activations take {format_bytes(size)}, {share} of the bytes in tensors",
            evidence=tuple(evidence),
            action=action,
            saving_low_ms=None,
            saving_high_ms=None,
            model="",
            rank=analysis.rank,
        )
    return None


def _best(modules: tuple[ModuleActivations, ...]) -> _Checkpoints | None:
    """Return the repeated blocks of the model with the most to save; None if nothing repeats."""
    groups: dict[tuple[str, int], list[ModuleActivations]] = defaultdict(list)
    for module in modules:
        if module.inner_modules:
            groups[module.name.rpartition("_")[0] or module.name, module.depth].append(module)
    found = [_Checkpoints(name, tuple(group)) for (name, _), group in groups.items() if len(group) > 1]
    best = max(found, key=lambda group: group.saved_bytes[1], default=None)
    total = max((module.bytes for module in modules), default=0)
    return best if best is not None and best.saved_bytes[1] >= MIN_SAVED * total else None


def _forward_ns(analysis: RankAnalysis, checkpoints: _Checkpoints) -> float | None:
    """Return the time of one more forward of some modules per step."""
    if analysis.modules is None:
        return None
    names = {module.name for module in checkpoints.modules}
    rows = [row for row in analysis.modules.rows if row.name in names]
    spent = [row.host_total_ns if row.device_total_ns is None else row.device_total_ns for row in rows]
    return sum(spent) / max(analysis.modules.steps, 1) if rows else None
