"""The lever for freed memory: keep it in the process."""

from __future__ import annotations

from lightning_perf.machine.page_faults import KEEP_MEMORY, allocator_name, keep_memory
from lightning_perf.tune.errors import NotApplicableError
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.training import Training


class KeptMemory:
    """glibc keeps freed memory for the next step, instead of giving it back to the system."""

    def missing(self, training: Training, machine: Machine) -> str | None:  # noqa: ARG002
        """See `Change`."""
        if machine.device != "cpu":
            return "the model trains on a device"
        allocator = allocator_name()
        return None if allocator == "glibc" else f"needs glibc's allocator, and this is {allocator or 'another one'}"

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Change`."""
        settings = " ".join(f"{name}={value}" for name, value in KEEP_MEMORY.items())
        return (f"export {settings}  # in the shell, before the training starts",)

    def apply(self, training: Training) -> None:  # noqa: ARG002
        """See `Change`."""
        if not keep_memory():
            raise NotApplicableError("glibc does not take the setting")
