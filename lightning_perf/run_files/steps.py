"""``steps.rank0.jsonl``: how long each step took, measured without the profiler.

A line holds a block of consecutive steps, one array per column, which takes about 20 bytes per step.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import msgspec
import numpy as np
import numpy.typing as npt

from lightning_perf.run_files.jsonl import Count, RankLog

WARMUP_STEPS = 5
"""Steps at the beginning of a run that pay for allocation, algorithm choice and compilation."""

BLOCK_STEPS = 1000
"""Steps in a line at most."""

COLUMNS = ("step", "step_ns", "data_wait_ns", "device_ns", "samples", "tokens", "compute_ns", "wait_ns")
"""The columns of integers."""

UNKNOWN = -1
"""Marks a missing count in a column of integers."""


class StepSample(NamedTuple):
    """The times of one step, as the step timer measured them.

    Attributes:
        step: The step's number, counted over the whole fit.
        step_ns: Time of the step, including the wait for its batches. On CUDA it is measured by events on the device,
            because the host may run ahead. Elsewhere it is measured by the host's clock.
        data_wait_ns: Time for which the training thread waited for batches.
        device_ns: The part of ``step_ns`` in which the device did not wait for a batch. It lasts from the end of each
            fetch to the end of the work launched after it, and includes gaps between kernels. None if not measured.
        samples: Samples trained on in the step, or None when the batch does not show it.
        profiled: Whether the profiler ran, warm-up and export included, or a monitor has run a batch or a layer again.
            The time then contains that cost.
        tokens: Tokens trained on in the step, padding included, or None when the batches hold no token sequences.
        compute_ns: Time of transfer, forward pass and optimizer. Known for ranks of a Trainer on processors only.
        wait_ns: Time of the phases that contain the waits for other ranks: backward passes, and Lightning's stop flag.
            Known where ``compute_ns`` is.
    """

    step: Count
    step_ns: Count
    data_wait_ns: Count
    device_ns: Count | None
    samples: Count | None
    profiled: bool
    tokens: Count | None = None
    compute_ns: Count | None = None
    wait_ns: Count | None = None


class StepSamples(Sequence[StepSample]):
    """Many step samples in columns: 65 bytes each, where an object takes some 250.

    The columns have the names of `StepSample`, and an array each. An unknown count is -1.

    Example:
        >>> samples = StepSamples.of([StepSample(7, 20, 5, None, 32, False), StepSample(8, 30, 5, None, 32, False)])
        >>> int(samples.step_ns.sum()), samples[1].step, samples[:1].device_ns
        (50, 8, array([-1]))
    """

    def __init__(self, *columns: npt.NDArray[Any]) -> None:
        self.step, self.step_ns, self.data_wait_ns, self.device_ns, self.samples, self.tokens = columns[:6]
        self.compute_ns, self.wait_ns, self.profiled = columns[6:]

    @classmethod
    def of(cls, samples: Iterable[StepSample]) -> StepSamples:
        """Return samples in columns: the same object if they are already."""
        if isinstance(samples, cls):
            return samples
        columns = _Columns()
        for sample in samples:
            columns.add(sample)
        return columns.samples()

    def __len__(self) -> int:
        return len(self.step)

    @overload
    def __getitem__(self, index: int) -> StepSample: ...

    @overload
    def __getitem__(self, index: slice | npt.NDArray[Any]) -> StepSamples: ...

    def __getitem__(self, index: int | slice | npt.NDArray[Any]) -> StepSample | StepSamples:
        """Return one sample, or those of a slice, a mask or an array of rows."""
        if not isinstance(index, (int, np.integer)):
            return StepSamples(*(column[index] for column in self._columns()))
        values: dict[str, Any] = {name: int(getattr(self, name)[index]) for name in COLUMNS}
        known: dict[str, Any] = {name: None if value == UNKNOWN else value for name, value in values.items()}
        return StepSample(**known, profiled=bool(self.profiled[index]))

    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return tuple(getattr(self, name) for name in (*COLUMNS, "profiled"))


class _Line(msgspec.Struct, omit_defaults=True):
    """A block of consecutive steps, with a list for each column.

    ``step`` is the first step's number. Most columns of equal values may be stored as that one value, and
    ``profiled`` may list the profiled rows. ``tokens``, ``compute_ns`` and ``wait_ns`` are absent if no step has any.
    """

    step: Count
    step_ns: list[Count]
    data_wait_ns: list[Count]
    device_ns: Count | list[Count | None] | None
    samples: Count | list[Count | None] | None
    profiled: bool | list[Count]
    tokens: Count | list[Count | None] | None = None
    compute_ns: Count | list[Count | None] | None = None
    wait_ns: Count | list[Count | None] | None = None


class StepsLog(RankLog[Any]):
    r"""Writes and reads ``steps.rank0.jsonl`` and its siblings of other ranks.

    Example:
        >>> STEPS.encode(StepSample(7, 20, 5, None, 32, False), StepSample(8, 30, 5, None, 32, False))
        b'{"step":7,"step_ns":[20,30],"data_wait_ns":[5,5],"device_ns":null,"samples":32,"profiled":false}\n'
    """

    def __init__(self) -> None:
        # A line holds one flat object, so its last brace opens the object written after an incomplete one.
        super().__init__(_Line, "steps", "step sample", restart=b"{")

    def encode(self, *samples: StepSample) -> bytes:
        """Encode samples as lines, each with its newline."""
        return super().encode(*_blocks(samples))

    def read(self, path: str | Path) -> StepSamples:  # type: ignore[override]
        """Read the samples of a file in columns, in the order in which they were written."""
        columns = _Columns()
        for line in self.iterate(path):
            columns.add_line(line)
        return columns.samples()


class StepsTail:
    """Follows a file of step samples while a run appends to it.

    Attributes:
        count: Samples read so far.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.count = 0
        self._path = path
        self._keep = keep
        self._position = 0
        self._columns = _Columns()

    def read_on(self) -> StepSamples:
        """Read the samples that were appended since the last call."""
        if self._path.stat().st_size < self._position:  # another run has replaced the file
            self.count, self._position, self._columns = 0, 0, _Columns()
        lines, self._position = STEPS.read_on(self._path, self._position)
        for line in lines:
            self.count += self._columns.add_line(line)
        self._columns.keep_last(self._keep)
        return self._columns.samples()


class _Columns:
    """Columns under construction."""

    def __init__(self) -> None:
        self._numbers = tuple(array("q") for _ in COLUMNS)
        self._profiled = array("b")

    def add(self, sample: StepSample) -> None:
        for column, name in zip(self._numbers, COLUMNS, strict=True):
            value = getattr(sample, name)
            column.append(UNKNOWN if value is None else value)
        self._profiled.append(sample.profiled)

    def keep_last(self, count: int) -> None:
        for column in (*self._numbers, self._profiled):
            del column[: max(len(column) - count, 0)]

    def add_line(self, line: _Line) -> int:
        count = len(line.step_ns)
        step, *others = self._numbers
        step.extend(range(line.step, line.step + count))
        for column, name in zip(others, COLUMNS[1:], strict=True):
            values = getattr(line, name)
            if not isinstance(values, list):
                values = [values] * count
            # A list of another length cannot come from `encode`; the columns must stay equally long all the same.
            known = [UNKNOWN if value is None else value for value in values[:count]]
            column.extend(known + [UNKNOWN] * (count - len(known)))
        profiled = bytearray(count) if isinstance(line.profiled, list) else bytearray([line.profiled]) * count
        for row in line.profiled if isinstance(line.profiled, list) else ():
            if row < count:
                profiled[row] = 1
        self._profiled.frombytes(profiled)
        return count

    def samples(self) -> StepSamples:
        """Return the samples in arrays of their own, so that the columns can grow further."""
        numbers = (np.array(column, np.int64) for column in self._numbers)
        return StepSamples(*numbers, np.array(self._profiled, np.bool_))


def _blocks(samples: Sequence[StepSample]) -> Iterator[_Line]:
    """Split samples into blocks of consecutive steps."""
    begin = 0
    for row in range(1, len(samples) + 1):
        full = row - begin == BLOCK_STEPS
        if row == len(samples) or full or samples[row].step != samples[row - 1].step + 1:
            yield _block(samples[begin:row])
            begin = row


def _block(samples: Sequence[StepSample]) -> _Line:
    profiled = [row for row, sample in enumerate(samples) if sample.profiled]
    return _Line(
        samples[0].step,
        [sample.step_ns for sample in samples],
        [sample.data_wait_ns for sample in samples],
        _constant([sample.device_ns for sample in samples]),
        _constant([sample.samples for sample in samples]),
        len(profiled) == len(samples) if len(profiled) in (0, len(samples)) else profiled,
        *(_constant([getattr(sample, name) for sample in samples]) for name in ("tokens", "compute_ns", "wait_ns")),
    )


def _constant(values: list[int | None]) -> Any:
    return values[0] if len(set(values)) == 1 else values


STEPS = StepsLog()
