"""A recording's description of itself and its machine, how it is read, and the faults of its file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.trace.text.salvage import lenient_json


class DeviceProperties(Struct, frozen=True):
    """A device as the recording describes it. A missing value is ``None``.

    Attributes:
        ordinal: The device's number.
        name: Marketing name, e.g. ``NVIDIA A100-SXM4-40GB``.
        total_memory_bytes: Device memory.
        compute_major: CUDA compute capability, major.
        compute_minor: CUDA compute capability, minor.
        sm_count: Streaming multiprocessors (compute units on AMD).
        warp_size: Threads per warp (wavefront).
        max_threads_per_sm: Maximum of resident threads.
    """

    ordinal: int
    name: str | None = None
    total_memory_bytes: int | None = None
    compute_major: int | None = None
    compute_minor: int | None = None
    sm_count: int | None = None
    warp_size: int | None = None
    max_threads_per_sm: int | None = None


class Processor(Struct, frozen=True):
    """The processor that recorded, as `PerfCallback` notes it. An unknown value is ``None``.

    Attributes:
        name: Its model, e.g. ``AMD EPYC 9654 96-Core Processor``.
        cores: Cores that the process may keep busy. Each counts once, however many threads it runs.
        threads: Threads that one operator may use (``torch.get_num_threads()``).
        bf16: Its instructions that multiply bfloat16, by Linux's names: ``avx512_bf16``, ``amx_bf16``, ``bf16`` (Arm).
        trains: Whether the model trains on it.
        load: Processes that ran or were ready to run on the whole machine: the mean of the minute before.
        page_faults: Page faults without disk access, the median of the steps between warm-up and recording. Each is a
            first use of a page that the system had to clear.
        page_fault_ns: Cost of one page fault to one thread, measured before the recording.
        allocator: The process's ``malloc``: ``glibc``, ``jemalloc``, ``tcmalloc`` or ``mimalloc``.
        cpus: Logical processors that the process may keep busy, by its affinity and its container's quota.
        machine_cpus: Logical processors of the whole machine, to which the load refers.
        core_wait: Share of the time in which the training thread was ready to run and waited for a core, 0 to 1, from
            the end of the warm-up to the recording. The facts below are of the same time.
        thread_cpu: Share of the time in which the training thread ran on a core.
        process_cpu: Cores that all threads of the training process kept busy.
        other_cpu: Cores that other programs kept busy.
        worker_cpu: Cores that each worker process of the loader kept busy: below 1 if it also waits, e.g. for a disk.
        worker_wait: Share of the time in which a worker process was ready to run and waited for a core.
        free_bytes: Memory that was free when the profiler warmed up.
        used_bytes: Memory of this process then (its resident set).
    """

    name: str | None = None
    cores: int | None = None
    threads: int | None = None
    bf16: tuple[str, ...] | None = None
    trains: bool | None = None
    load: float | None = None
    page_faults: float | None = None
    page_fault_ns: float | None = None
    allocator: str | None = None
    cpus: int | None = None
    machine_cpus: int | None = None
    core_wait: float | None = None
    thread_cpu: float | None = None
    process_cpu: float | None = None
    other_cpu: float | None = None
    worker_cpu: float | None = None
    worker_wait: float | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None


class DataLoading(Struct, frozen=True):
    """The loading of batches, as `PerfCallback` notes it. An unknown value is ``None``.

    Attributes:
        kind: ``map`` or ``iterable``, by the dataset of a torch DataLoader; ``other`` for any other loader.
        workers: Its worker processes (``num_workers``).
        batch_size: Samples per batch.
        pin_memory: Whether it pins memory.
        persistent_workers: Whether worker processes stay for the next epoch.
        in_memory: Whether the dataset is a ``TensorDataset``, or a part of one.
        batched: Whether it takes all samples of a batch at once: ``batch_size=None``, or a dataset with
            ``__getitems__``.
        uses_model: Whether the dataset or the sampler holds the model, so that the data depend on its training.
        dataset: Class of the dataset.
        collate: Name of the ``collate_fn``, if it is not torch's default.
        container: The largest list or dictionary that the dataset holds; None without one of 10,000 objects.
        sampler: Class of the sampler or batch sampler, if it is neither torch's nor Lightning's.
        order: Class of the sampler that orders single samples, torch's included.
        batches_per_epoch: Training batches in an epoch. Under a limit of the Trainer, the data set may have more.
    """

    kind: str | None = None
    workers: int | None = None
    batch_size: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    in_memory: bool | None = None
    batched: bool | None = None
    uses_model: bool | None = None
    dataset: str | None = None
    collate: str | None = None
    container: str | None = None
    sampler: str | None = None
    order: str | None = None
    batches_per_epoch: int | None = None


class Batch(Struct, frozen=True):
    """The contents of one batch, as `PerfCallback` counts them when the profiler warms up.

    Attributes:
        tensors: Its tensors.
        tensor_bytes: Bytes of their elements.
        objects: Its other objects: containers, numbers, strings, arrays.
        object_bytes: Bytes of its strings and arrays.
        complete: Whether all of it was counted. Otherwise the numbers are the least.
    """

    tensors: int
    tensor_bytes: int
    objects: int
    object_bytes: int
    complete: bool = True


class HookTime(Struct, frozen=True):
    """The time of one hook of a callback or module.

    Attributes:
        name: The hook as ``Class.hook``.
        time_ns: Its time, over all recorded steps.
    """

    name: str
    time_ns: int


class TrainingLoop(Struct, frozen=True):
    """Facts about the training loop and its hooks, from `PerfCallback`.

    Attributes:
        steps: Whole steps that the times of the hooks are over.
        hooks: The slowest hooks of callbacks and modules, the slowest first; ``None`` if they were not timed.
        loggers: Classes of the Trainer's loggers.
        log_every_n_steps: The Trainer's ``log_every_n_steps``.
        bar_values: Values that are logged in each step with ``prog_bar=True``; ``None`` if they are unknown.
    """

    steps: int | None = None
    hooks: tuple[HookTime, ...] | None = None
    loggers: tuple[str, ...] = ()
    log_every_n_steps: int | None = None
    bar_values: tuple[str, ...] | None = None


class Tokens(Struct, frozen=True):
    """The tokens of the recorded steps of a language model, as `PerfCallback` counts them.

    Attributes:
        parameters: Parameters of the model without tables of embeddings that are only read; ``None`` if unknown.
        steps: Whole recorded steps.
        tokens: Tokens in them, padding included.
        counted: Tokens of the batches in which padding was counted; ``None`` if padding is not marked in the batches.
        padding: Padding among them.
        beyond_longest: Padding that no row of its batch needs: columns in which all rows are padded.
    """

    parameters: int | None
    steps: int
    tokens: int
    counted: int | None = None
    padding: int = 0
    beyond_longest: int = 0

    def joined(self, other: Tokens) -> Tokens:
        """Return the counts of this recording and of another one of the same model."""
        counted = [count for count in (self.counted, other.counted) if count is not None]
        return Tokens(
            parameters=self.parameters if self.parameters is not None else other.parameters,
            steps=self.steps + other.steps,
            tokens=self.tokens + other.tokens,
            counted=sum(counted) if counted else None,
            padding=self.padding + other.padding,
            beyond_longest=self.beyond_longest + other.beyond_longest,
        )


class Settings(Struct, frozen=True):
    """Settings of torch in the process that recorded, and of the device that it used, as `PerfCallback` notes them.

    An unknown value is ``None``. The device and its settings are of a training on a GPU.

    Attributes:
        detect_anomaly: Whether autograd looks for anomalies.
        deterministic: Whether all of torch must use deterministic algorithms.
        cudnn_deterministic: Whether cuDNN may choose deterministic algorithms only.
        cudnn_benchmark: Whether cuDNN tries its algorithms for each new shape and keeps the fastest.
        variables: Environment variables for debugging, as ``NAME=value``.
        uuid: Unique ID of the device.
        tf32_matmul: Whether FP32 matrix products may use TF32.
        tf32_convolution: Whether FP32 convolutions and recurrent layers may use TF32.
        allocator: Settings of the memory allocator, as in ``PYTORCH_ALLOC_CONF``.
        attached_tool: Another tool that was attached to the process, such as Nsight Systems.
        nodes: Machines that the training ran on.
    """

    detect_anomaly: bool | None = None
    deterministic: bool | None = None
    cudnn_deterministic: bool | None = None
    cudnn_benchmark: bool | None = None
    variables: tuple[str, ...] = ()
    uuid: str | None = None
    tf32_matmul: bool | None = None
    tf32_convolution: bool | None = None
    allocator: str | None = None
    attached_tool: str | None = None
    nodes: int | None = None


class Metadata(Struct, frozen=True):
    """The recording's description of itself. A missing value is ``None``.

    Attributes:
        devices: The devices present (not only those used).
        rank: This process's rank.
        world_size: Ranks in the run.
        backend: Communication backend (``nccl``, ``gloo``).
        hostname: Host that recorded.
        base_time_ns: Epoch offset, already added to every time in the tables; 0 if the file has none.
        record_shapes: Whether operator inputs were recorded.
        with_stack: Whether Python functions were recorded.
        profile_memory: Whether allocator events were recorded.
        with_flops: Whether operators carry FLOP counts.
        with_modules: Whether module names were recorded.
        runtime_version: CUDA or HIP runtime version, as recorded.
        is_hip: Whether the device is an AMD one under HIP/ROCm.
        processor: The host's processor; ``None`` if nothing is recorded of it.
        loader: How the batches were made.
        loop: The training loop and its hooks.
        tokens: The tokens of the recorded steps.
        batch: The contents of a batch.
        settings: Settings of torch, and the device that the training used.
        device_stopped: Whether the recorder's buffer for device events was full, so that it dropped the later ones.
    """

    devices: tuple[DeviceProperties, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    hostname: str | None = None
    base_time_ns: int = 0
    record_shapes: bool | None = None
    with_stack: bool | None = None
    profile_memory: bool | None = None
    with_flops: bool | None = None
    with_modules: bool | None = None
    runtime_version: int | None = None
    is_hip: bool = False
    processor: Processor | None = None
    loader: DataLoading | None = None
    loop: TrainingLoop | None = None
    tokens: Tokens | None = None
    batch: Batch | None = None
    settings: Settings | None = None
    device_stopped: bool | None = None


class Problems(Struct, frozen=True):
    """The faults of a file that could still be read. All zero and false for a sound file.

    Attributes:
        truncated: The file ends before its JSON does, or its recorder stopped to record the device. Device events come
            last, so shares of time would mislead.
        repaired_events: Events read after a repair of invalid JSON (escapes, control characters, bare nan).
        dropped_events: Events that could not be read even then.
        bad_durations: Events left out for a missing or negative duration or an unreadable time.
        unread_events: Events of unknown categories in processes without host events, which are likely device work.
        unread_in: Names of these categories and processes, sorted.
        overhead_events: Events about the device recorder's own work. They show that the profiler asked for the device.
    """

    truncated: bool = False
    repaired_events: int = 0
    dropped_events: int = 0
    bad_durations: int = 0
    unread_events: int = 0
    unread_in: tuple[str, ...] = ()
    overhead_events: int = 0

    @property
    def lacks_work(self) -> bool:
        """Whether the device's work is likely to be missing, so that shares of time would mislead."""
        return self.truncated or self.unread_events > 0

    def joined(self, other: Problems) -> Problems:
        """Return the faults of both of two files."""
        return Problems(
            self.truncated or other.truncated,
            self.repaired_events + other.repaired_events,
            self.dropped_events + other.dropped_events,
            self.bad_durations + other.bad_durations,
            self.unread_events + other.unread_events,
            tuple(sorted({*self.unread_in, *other.unread_in})),
            self.overhead_events + other.overhead_events,
        )


BATCH_KEY = "lightning_perf.batch"
PROCESSOR_KEY = "lightning_perf.processor"
LOADER_KEY = "lightning_perf.loader"
LOOP_KEY = "lightning_perf.loop"
STOPPED_KEY = "lightning_perf.device_stopped"
TOKENS_KEY = "lightning_perf.tokens"
SETTINGS_KEY = "lightning_perf.settings"
"""Keys of `PerfCallback`'s notes about a batch, the processor, the data loader, the loop, a recorder that stopped
early, the tokens, and the settings of torch and its device."""

_DEVICE_KEY = "lightning_perf.device_settings"
"""The key under which recordings of the first versions note the device and its settings."""

_LARGEST_BASE_NS = 2**61


def read_metadata(header: bytes, trailer: bytes) -> Metadata:
    """Read the text before and after the events. Missing fields, and those of another type, are left out."""
    document: dict[str, Any] = {}
    for text in (header, trailer):
        part = lenient_json(text)
        if isinstance(part, dict):
            document.update(part)
    ranks, devices = document.get("distributedInfo"), document.get("deviceProperties")
    ranks = ranks if isinstance(ranks, dict) else {}
    facts = document | {key: ranks.get(key) for key in ("rank", "world_size", "backend")}
    read = _fields(
        Metadata, facts, hostname="host_name", runtime_version="cuda_runtime_version", device_stopped=STOPPED_KEY
    )
    base = _integer(document, "baseTimeNanoseconds") or 0
    read |= {
        "devices": tuple(
            _device(value, position)
            for position, value in enumerate(devices if isinstance(devices, list) else [])
            if isinstance(value, dict)
        ),
        "base_time_ns": base if abs(base) < _LARGEST_BASE_NS else 0,
        "runtime_version": read["runtime_version"] or _integer(document, "hip_runtime_version"),
        "is_hip": any(key in document for key in ("hip_runtime_version", "hip_driver_version", "roctracer_version")),
    }
    if isinstance(of_device := document.get(_DEVICE_KEY), dict):
        settings = document.get(SETTINGS_KEY)
        document[SETTINGS_KEY] = (settings if isinstance(settings, dict) else {}) | of_device
    for name, key, kind in (
        ("processor", PROCESSOR_KEY, _processor),
        ("loader", LOADER_KEY, _loader),
        ("loop", LOOP_KEY, _loop),
        ("tokens", TOKENS_KEY, _tokens),
        ("batch", BATCH_KEY, _batch),
        ("settings", SETTINGS_KEY, lambda values: Settings(**_fields(Settings, values))),
    ):
        value = document.get(key)
        read[name] = kind(value) if isinstance(value, dict) else None
    return Metadata(**read)


def _device(values: dict[str, Any], position: int) -> DeviceProperties:
    read = _fields(
        DeviceProperties,
        values,
        total_memory_bytes="totalGlobalMem",
        compute_major="computeMajor",
        compute_minor="computeMinor",
        sm_count="numSms",
        warp_size="warpSize",
        max_threads_per_sm="maxThreadsPerMultiprocessor",
    )
    ordinal = _integer(values, "id")
    return DeviceProperties(ordinal=position if ordinal is None else ordinal, **read)


def _processor(values: dict[str, Any]) -> Processor:
    read = _fields(Processor, values)
    return Processor(**read | {name: _positive(values, name) for name in ("free_bytes", "used_bytes")})


def _loader(values: dict[str, Any]) -> DataLoading | None:
    read = _fields(DataLoading, values)
    return DataLoading(**read | {"batches_per_epoch": _positive(values, "batches_per_epoch")}) if values else None


def _batch(values: dict[str, Any]) -> Batch | None:
    counts = [_integer(values, name) for name in ("tensors", "tensor_bytes", "objects", "object_bytes")]
    tensors, tensor_bytes, objects, object_bytes = (-1 if count is None else count for count in counts)
    if min(tensors, tensor_bytes, objects, object_bytes) < 0:
        return None
    return Batch(tensors, tensor_bytes, objects, object_bytes, complete=_flag(values, "complete") is not False)


def _loop(values: dict[str, Any]) -> TrainingLoop | None:
    if not values:
        return None
    hooks, read = values.get("hooks_ns"), _fields(TrainingLoop, values)
    if isinstance(hooks, dict):
        times = {name: _integer(hooks, name) for name in hooks}
        read["hooks"] = tuple(HookTime(name, time_ns) for name, time_ns in times.items() if time_ns is not None)
    return TrainingLoop(**read)


def _tokens(values: dict[str, Any]) -> Tokens | None:
    steps, tokens = _positive(values, "steps"), _positive(values, "tokens")
    if steps is None or tokens is None:
        return None
    found = Tokens(_positive(values, "parameters"), steps, tokens)
    counted = _positive(values, "counted")
    padding, beyond_longest = (_integer(values, name) or 0 for name in ("padding", "beyond_longest"))
    if counted is None or not 0 <= beyond_longest <= padding <= counted:
        return found
    return replace(found, counted=counted, padding=padding, beyond_longest=beyond_longest)


def _texts(values: dict[str, Any], key: str) -> tuple[str, ...] | None:
    value = values.get(key)
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else None


def _positive(values: dict[str, Any], key: str) -> int | None:
    value = _integer(values, key)
    return value if value is not None and value > 0 else None


def _integer(values: dict[str, Any], key: str) -> int | None:
    value = values.get(key)
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _number(values: dict[str, Any], key: str) -> float | None:
    value = values.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9 else None


def _text(values: dict[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) else None


def _flag(values: dict[str, Any], key: str) -> bool | None:
    value = values.get(key)
    return bool(value) if isinstance(value, int) else None


_READERS: dict[Any, Callable[[dict[str, Any], str], Any]] = {
    "int | None": _integer,
    "float | None": _number,
    "str | None": _text,
    "bool | None": _flag,
    "tuple[str, ...] | None": _texts,
    "tuple[str, ...]": lambda values, key: _texts(values, key) or (),
}


def _fields(kind: type[Any], values: dict[str, Any], **keys: str) -> dict[str, Any]:
    """Read the fields of a struct that are numbers, texts or flags. `keys` names those with another key."""
    return {
        name: _READERS[annotation](values, keys.get(name, name))
        for name, annotation in kind.__annotations__.items()
        if annotation in _READERS
    }
