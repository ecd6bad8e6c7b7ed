"""The settings that a probe tries, and the messages between the training and the worker process that probes."""

from __future__ import annotations

from msgspec import Struct

from lightning_perf.analysis.model.operators import OperatorCalls
from lightning_perf.trace.description import Batch, Settings
from lightning_perf.workers.channel import Message

FUSED, THREADS = "fused", "threads"
"""Names of an optimizer's fused implementation, and of the recorded implementation with more threads."""


class Setting(Struct, frozen=True):
    """A way to run the recorded calls.

    Attributes:
        name: ``current``, or the name of the change, e.g. ``bf16``.
        autocast: Type of autocast, ``bfloat16`` or ``float16``; ``None`` without autocast.
        threads: Threads of an operator on the processor; ``None`` to keep those of the recording.
        channels_last: Whether 4-dimensional weights are in channels last.
        tf32_matmul: Whether FP32 matrix products may use TF32 on a device.
        tf32_convolution: Whether its convolutions and recurrent layers may.
    """

    name: str
    autocast: str | None = None
    threads: int | None = None
    channels_last: bool = False
    batch: int = 1
    tf32_matmul: bool = False
    tf32_convolution: bool = True


CURRENT = "current"
"""Name of the setting of the recording."""


class OptimizerTask(Message, frozen=True):
    """An optimizer to measure in its recorded implementation and in others."""

    name: str
    implementation: str
    momentum: bool = False
    nesterov: bool = False
    weight_decay: bool = False
    amsgrad: bool = False


class Task(Message, frozen=True):
    """Calls to measure.

    Attributes:
        bound: For each call, its arguments by the name of the setting (`Bound`), pickled.
        skipped: Reasons for calls that cannot be made.
        settings: The settings. The first one is that of the recording.
        memory_bytes: Most memory for the tensors of the calls.
        batch: The batch to send between processes; ``None`` to send none.
        on: The device that the training used, and its settings.
    """

    calls: OperatorCalls
    bound: bytes
    skipped: dict[int, str]
    settings: tuple[Setting, ...]
    device: str
    threads: int
    batch_size: int | None
    seconds: float
    memory_bytes: int
    optimizer: OptimizerTask | None = None
    batch: Batch | None = None
    on: Settings = Settings()


class Begin(Message, frozen=True):
    """The first message. The worker process loads torch meanwhile."""


class Ready(Message, frozen=True):
    """The worker process has loaded torch, and the processor time that this took over all threads."""

    cpu_s: float


class Times(Message, frozen=True):
    """The times of one call in one setting, one per round, in nanoseconds per call.

    Attributes:
        call: Place of the call in `OperatorCalls.calls`.
        first_round: Number of the first of these rounds. All settings of a round follow one another closely.
    """

    call: int
    setting: str
    forward_ns: tuple[float, ...]
    backward_ns: tuple[float, ...]
    first_round: int = 1


class GraphTimes(Message, frozen=True):
    """The times of a step's calls, forward and backward, in nanoseconds, one per repetition.

    Attributes:
        places: Places of the calls in `OperatorCalls.calls`, in their order, as often as the step makes them.
        launched_ns: From an empty queue until the device is ready, if the host makes one call after the other.
        queued_ns: Time of the device for the same calls, if the host has made them before it begins.
        replayed_ns: Time of the device for a replay of a CUDA graph of them.
    """

    places: tuple[int, ...]
    launched_ns: tuple[float, ...]
    queued_ns: tuple[float, ...]
    replayed_ns: tuple[float, ...]


class CompiledTimes(Message, frozen=True):
    """The times of a step's calls, forward and backward, in nanoseconds, one per round.

    Attributes:
        places: Places of the calls in `OperatorCalls.calls`, in their order, as often as the step makes them.
    """

    places: tuple[int, ...]
    eager_ns: tuple[float, ...]
    compiled_ns: tuple[float, ...]
    compile_s: float


class TransferTimes(Message, frozen=True):
    """The times of batches from a worker process, in nanoseconds, one per batch.

    Attributes:
        sent_ns: From batch to batch if none is waited for: the work of the slower process.
        received_ns: Time of the receiving thread for a batch that has been sent.
    """

    sent_ns: tuple[float, ...]
    received_ns: tuple[float, ...]


class Measured(Message, frozen=True):
    """The result of a task.

    Attributes:
        optimizer: Times of an optimizer step by implementation, or with more `THREADS`, one per step, in nanoseconds.
        skipped: Calls that could not be run, with the reason.
        launch_ns: Cost of launching an empty kernel on the device; ``None`` on a processor.
        page_faults: Page faults of a step's calls and of the optimizer, in the recorded setting; ``None`` if they were
            not counted.
        uuid: Unique ID of the device; ``None`` for a processor.
    """

    times: tuple[Times, ...]
    optimizer: dict[str, tuple[float, ...]]
    skipped: dict[int, str]
    launch_ns: float | None
    seconds: float
    device: str
    page_faults: float | None = None
    transfer: TransferTimes | None = None
    uuid: str | None = None


class Replayed(Message, frozen=True):
    """The second result of a task on a device: the calls replayed from a CUDA graph; ``None`` if they cannot be."""

    times: GraphTimes | None
