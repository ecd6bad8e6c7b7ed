"""``probe.json``: the recorded operators of a run, measured again in other settings after the training."""

from __future__ import annotations

from msgspec import Struct, field

from lightning_perf.run_files.atomic import JsonFile

PROBE_NAME = "probe.json"

SCHEMA_VERSION = 1

DEFAULT_SECONDS = 5.0
"""Time for a probe, the start of its worker process included."""


class ProbedChange(Struct, frozen=True):
    """The effect of one change on the step time.

    Attributes:
        name: ``bf16``, ``fp16``, ``tf32``, ``channels-last``, ``threads``, ``fused-optimizer``,
            ``batch``, ``cuda-graph`` or ``compile``.
        setting: The value that was measured, e.g. ``bf16-mixed`` or ``2 threads``.
        saving_ns: Estimated saving in nanoseconds per step; negative for a loss.
        low_ns: Lower end of its range.
        high_ns: Upper end of its range.
        noise_ns: Part of the range that comes from the noise of the probe, on each side.
        measured_ns: Time per step of the recorded operators that were measured in this setting.
        rounds: Times that each of them was measured.
        similar_ns: Time per step of further calls of the same operators, which they stand for.
        faults_ns: Cost per step of page faults that the training has and the probe lacks, from a tenth of the step on.
            The change may remove or add some. The range contains half of this cost.
    """

    name: str
    setting: str
    saving_ns: float
    low_ns: float
    high_ns: float
    noise_ns: float
    measured_ns: float
    rounds: int
    similar_ns: float = 0.0
    faults_ns: float = 0.0


class ProbedCall(Struct, frozen=True):
    """One recorded operator call and its times in all settings.

    Attributes:
        name: The operator, e.g. ``conv2d``.
        shapes: Shapes of its inputs.
        calls: Calls per step.
        recorded_ns: Usual time per step, forward and backward: that in the recording, unless it is unusually long.
        current_ns: Time of one call in the probe, in the setting of the recording.
        changed_ns: Time of one call in the probe, by the name of the change.
    """

    name: str
    shapes: str
    calls: float
    recorded_ns: float
    current_ns: float
    changed_ns: dict[str, float] = field(default_factory=dict)


class ProbedTransfer(Struct, frozen=True):
    """The way of a batch like the recorded one from a worker process to the process that trains, per batch.

    The ends are the quartiles of the batches that were sent.

    Attributes:
        sent_low_ns: Time from batch to batch if none is waited for, lower end.
        sent_high_ns: Upper end.
        received_low_ns: Time that the training thread needs to receive a batch that has been sent, lower end.
        received_high_ns: Upper end.
        batches: Batches that were sent.
    """

    sent_low_ns: float
    sent_high_ns: float
    received_low_ns: float
    received_high_ns: float
    batches: int


class Probe(Struct, frozen=True):
    """The result of a probe.

    Attributes:
        device: Device that it ran on.
        rank: Rank of the recording; ``None`` if it is unknown.
        sources: Names of the trace files.
        step_ns: Mean step time of the recording.
        operator_ns: Time per step of the recorded operators, forward and backward.
        covered_ns: Time per step of those that were measured.
        seconds: Time that the probe took.
        changes: The changes that were measured.
        calls: The measured calls, the longest first.
        skipped: Reasons for operators that could not be measured, by their names.
        launch_ns: Cost of launching an empty kernel on this device; ``None`` on a processor.
        compile_s: Time that compiling the calls took; ``None`` if they were not compiled.
        same_device: Whether the recording was made on this device, as far as it is known.
        schema_version: `SCHEMA_VERSION` of the writer.
        transfer: Sending a batch between processes; ``None`` if it was not measured.
    """

    device: str
    rank: int | None
    sources: tuple[str, ...]
    step_ns: float
    operator_ns: float
    covered_ns: float
    seconds: float
    changes: tuple[ProbedChange, ...]
    calls: tuple[ProbedCall, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    launch_ns: float | None = None
    compile_s: float | None = None
    same_device: bool = True
    schema_version: int = SCHEMA_VERSION
    transfer: ProbedTransfer | None = None

    def change(self, name: str) -> ProbedChange | None:
        """Return the change of a name; ``None`` if it was not measured."""
        return next((change for change in self.changes if change.name == name), None)


_FILE = JsonFile(Probe, PROBE_NAME, "is not the result of a probe")
write_probe, read_probe = _FILE.write, _FILE.read
