"""Which engine runs a study, as a value that is kept with the study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lightning_perf.compare.engines.base import Engine

__all__ = ["EngineChoice"]


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """An engine and its options; an engine leaves those alone that are another's.

    Attributes:
        engine: ``local``, ``ray`` or ``slurm``.
        devices: For ``local``, as `parse_devices` reads them.
        gpus: GPUs of a run on a cluster.
        cpus: Processors of a run on a cluster.
        address: Of the Ray cluster; None for ``RAY_ADDRESS`` or a cluster of this machine alone.
        slurm: Options of the SLURM job without their dashes, as ``{"partition": "gpu", "time": 60}``.
    """

    engine: Literal["local", "ray", "slurm"] = "local"
    devices: str | None = None
    gpus: int = 1
    cpus: int = 1
    address: str | None = None
    slurm: Mapping[str, str | int] = field(default_factory=dict)

    def build(self) -> Engine:
        """The engine.

        Raises:
            CompareError: There is no such device.
        """
        if self.engine == "ray":
            from lightning_perf.compare.engines.ray import RayEngine

            return RayEngine(gpus=self.gpus, cpus=self.cpus, address=self.address)
        if self.engine == "slurm":
            from lightning_perf.compare.engines.slurm import SlurmEngine

            options = {f"slurm_{name}": value for name, value in self.slurm.items()}
            return SlurmEngine({"gpus_per_node": self.gpus, "cpus_per_task": self.cpus, **options})
        from lightning_perf.compare.engines.local import LocalEngine, parse_devices

        return LocalEngine(parse_devices(self.devices))
