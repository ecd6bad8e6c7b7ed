"""``gpu.rank0.jsonl``: clock, power, heat and energy of a rank's GPU over the training, by NVIDIA's NVML."""

from __future__ import annotations

from msgspec import Struct

from lightning_perf.run_files.jsonl import Count, RankLog

POWER_CAP, HARDWARE_SLOWDOWN = 0x04, 0x08

TROUBLE = {
    HARDWARE_SLOWDOWN: "slowed down by its hardware",
    0x20: "throttled by the driver, too hot",
    0x40: "throttled by its hardware, too hot",
    0x80: "throttled by its hardware, power brake",
}
"""Reasons for low clocks that are trouble of the machine: ``nvmlClocksEventReason…`` in NVML's ``nvml.h``."""

REMARKABLE = {
    POWER_CAP: "at its power limit",
    0x10: "held to the clock of other GPUs (sync boost)",
}
"""Reasons that are usual for a GPU under full load. Of the others, idle (1) is no limit, and clocks of applications (2)
and displays (256) are settings."""


class ClockReason(Struct, frozen=True):
    """A reason for low clocks.

    Attributes:
        reason: The reason in words, e.g. ``at its power limit``.
        share: Share of all samples with load and this reason, 0 to 1.
        harmful: Whether it is trouble of the machine, or a power limit below the default.
    """

    reason: str
    share: float
    harmful: bool


class GpuHealth(Struct, frozen=True):
    """The GPU of a rank, from the second batch to the end of training. ``None`` stands for a figure that is unknown.

    Attributes:
        rank: The rank that trained on it.
        uuid: NVML's unique name for it; ``MIG-…`` for a part of a GPU, with the figures of the whole one.
        watched_s: Length of the watch in seconds.
        load: Share of the samples under load: not idle, and kernels ran in half of the time before.
        clock_mhz: Median clock of its multiprocessors under load, in MHz.
        clock_limit_mhz: The clock that it can reach: the highest one, or the one that it is set to.
        clock_is_set: Whether its clock is set, so that the limit is a choice.
        throttled_share: Share of all samples with load and a harmful reason for low clocks.
        throttled_clock_mhz: Median clock in these samples.
        reasons: The reasons for low clocks, the most frequent first.
        power_w: Median power under load, in watts.
        power_limit_w: The power limit in force.
        default_limit_w: The default power limit.
        temperature_c: The highest temperature, in degrees Celsius.
        slowdown_c: The temperature from which its hardware lowers the clock.
        energy_j: Energy of the whole GPU in joules, with every program on it.
        sample_energy_j: That energy per sample of this rank, validation and checkpoints included.
        uncorrected_errors: Errors of its memory that were not corrected, so data may be wrong.
        corrected_errors: Errors of its memory that were corrected, which is harmless.
        other_processes: Processes of other programs that were seen on it; unknown in a container.
    """

    rank: Count
    uuid: str
    watched_s: float
    load: float | None = None
    clock_mhz: float | None = None
    clock_limit_mhz: float | None = None
    clock_is_set: bool = False
    throttled_share: float | None = None
    throttled_clock_mhz: float | None = None
    reasons: tuple[ClockReason, ...] = ()
    power_w: float | None = None
    power_limit_w: float | None = None
    default_limit_w: float | None = None
    temperature_c: float | None = None
    slowdown_c: float | None = None
    energy_j: float | None = None
    sample_energy_j: float | None = None
    uncorrected_errors: Count | None = None
    corrected_errors: Count | None = None
    other_processes: Count | None = None

    @property
    def lost(self) -> float:
        """The most that low clocks for harmful reasons can have cost, as a share of the time; 0 if it is unknown."""
        clock, limit = self.throttled_clock_mhz, self.clock_limit_mhz
        return (self.throttled_share or 0.0) * max(0.0, 1 - clock / limit) if clock and limit else 0.0


GPU_HEALTH: RankLog[GpuHealth] = RankLog(GpuHealth, "gpu", "summary of a GPU's health")
