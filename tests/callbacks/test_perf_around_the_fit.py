"""`PerfCallback` when training fails, beside other profilers, and around the fit: resumed, repeated, copied."""

from __future__ import annotations

import copy
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_perf import PerfCallback, read_trace
from lightning_perf.callbacks.recording.profiler import recorder_is_taken
from tests.callbacks.perf_training import assert_untapped, three
from tests.callbacks.training import (
    PACKAGES,
    Points,
    failing,
    failing_step,
    hooked,
    loader,
    logging_step,
    make_module,
    make_trainer,
    package,
    recording_logger,
    samples,
    step_marks,
    step_numbers,
    trace_files,
)


@pytest.mark.parametrize(("name", "at"), [(PACKAGES[0], 3), (PACKAGES[1], 3), (PACKAGES[0], 1)])
def test_an_error_in_training_passes_unchanged_and_the_trace_so_far_is_kept(tmp_path: Path, name: str, at: int) -> None:
    error = torch.OutOfMemoryError("training's own")
    trainer = make_trainer(tmp_path, three(), name)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer.fit(make_module(name, training_step=failing_step(error, at)), loader(6))
    assert raised.value is error
    (file,) = trace_files(tmp_path)
    assert [(m.name, m.finished) for m in step_marks(file)] == [
        (f"ProfilerStep#{step}", step < at) for step in range(1, at + 1)
    ]
    assert read_trace(file).steps.complete.tolist() == [step < at for step in range(1, at + 1)]
    assert [row["step"] for row in samples(tmp_path)] == list(range(at))
    assert_untapped(trainer)
    assert not recorder_is_taken()


@pytest.mark.parametrize(
    ("overrides", "data", "interval", "raised"),
    [
        ({"training_step": failing_step(KeyboardInterrupt(), 3)}, loader(6), 6, SystemExit),
        ({}, DataLoader(Points(12, lambda index: 1 / (index - 6)), 2), 6, ZeroDivisionError),
        ({"validation_step": failing(ZeroDivisionError())}, loader(6), 3, ZeroDivisionError),
    ],
    ids=["ctrl-c", "data", "validation"],
)
def test_an_error_anywhere_in_the_loop(
    tmp_path: Path, overrides: dict[str, Any], data: Any, interval: int, raised: type[BaseException]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    trainer = make_trainer(tmp_path, three(), val_check_interval=interval)
    try:
        with pytest.raises(raised):
            trainer.fit(make_module(**overrides), data, loader(1))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert step_numbers(tmp_path) == [[1, 2]]
    assert_untapped(trainer)
    assert not recorder_is_taken()


def test_an_error_in_warm_up_leaves_no_profiler_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        make_trainer(tmp_path, three(warmup=4)).fit(
            make_module(training_step=failing_step(ZeroDivisionError(), 3)), loader(8)
        )
    assert trace_files(tmp_path) == []
    with torch.profiler.profile() as after:
        torch.ones(2) + 1
    assert any(e.key == "aten::add" for e in after.key_averages())


def test_the_same_callback_in_two_fits(tmp_path: Path) -> None:
    callback = three()
    for _ in range(2):
        make_trainer(tmp_path, callback).fit(make_module(), loader(6))
    assert [file.parent.name for file in trace_files(tmp_path)] == ["perf", "perf_1"]
    trainer = make_trainer(tmp_path, callback)
    module = make_module()
    trainer.fit(module, loader(6))
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, loader(6))
    assert sorted(path.name for path in tmp_path.glob("perf*")) == ["perf", "perf_1", "perf_2", "perf_3"]
    assert [sample["step"] for sample in samples(tmp_path / "perf_3")] == list(range(6, 12))


@pytest.mark.parametrize(
    ("first", "second", "numbers"),
    [
        ({}, {"skip_first": 5, "active": 1}, ([[1, 2, 3]], [[5]])),
        # Torch has one recorder: the first to warm up keeps it for its window, and the second has what is left.
        ({"warmup": 2}, {"skip_first": 2, "warmup": 1, "active": 5}, ([[3, 4, 5]], [[7]])),
    ],
    ids=["apart", "overlapping"],
)
def test_two_callbacks_on_one_trainer(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], numbers: tuple[Any, Any]
) -> None:
    callbacks = [three(dirpath=tmp_path / "b", **second)]
    trainer = make_trainer(tmp_path, three(dirpath=tmp_path / "a", **first), callbacks=callbacks)
    trainer.fit(make_module(), loader(9))
    assert (step_numbers(tmp_path / "a"), step_numbers(tmp_path / "b")) == numbers
    assert_untapped(trainer)


@pytest.mark.parametrize("name", PACKAGES)
def test_resume_from_a_checkpoint(tmp_path: Path, name: str) -> None:
    trainer = make_trainer(tmp_path, three(), name)
    trainer.fit(make_module(name), loader(4))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"] == {}, "nothing of ours"
    again = make_trainer(tmp_path / "b", three(), name, max_epochs=2)
    again.fit(make_module(name), loader(4), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert step_numbers(tmp_path / "b") == [[5, 6, 7]]
    assert [row["step"] for row in samples(tmp_path / "b")] == [4, 5, 6, 7]


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint", "ignore:.*ended before the epoch ended")
def test_a_fit_resumed_within_an_epoch_counts_as_the_trainers_own_logs(tmp_path: Path, name: str) -> None:
    checkpoint = package(f"{name}.callbacks").ModelCheckpoint(tmp_path / "saved", every_n_train_steps=3)
    before = make_trainer(tmp_path, None, name, callbacks=[checkpoint], max_steps=4, enable_checkpointing=True)
    before.fit(make_module(name), loader(8))
    logger = package(f"{name}.loggers").CSVLogger(tmp_path)
    again = make_trainer(tmp_path, three(), name, logger=logger, log_every_n_steps=1)
    module = make_module(name, training_step=logging_step)
    again.fit(module, loader(8), ckpt_path=checkpoint.best_model_path, weights_only=True)
    table = [line.split(",") for line in (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()]
    logged = [int(row[table[0].index("step")]) for row in table[1:] if row[table[0].index("loss")]]
    assert logged == [3, 4, 5, 6, 7]
    assert [row["step"] for row in samples(Path(logger.log_dir))] == logged
    assert step_numbers(Path(logger.log_dir)) == [[4, 5, 6]]


def test_copies_and_pickles_are_of_the_settings(tmp_path: Path) -> None:
    callback = three(active=2)
    seen: list[PerfCallback] = []
    copier = hooked(
        on_train_batch_end=lambda *_: seen.extend([copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))])
    )
    make_trainer(tmp_path, callback, callbacks=[copier]).fit(make_module(), loader(5))
    assert step_numbers(tmp_path) == [[1, 2]]
    for number, copied in enumerate([seen[4], seen[5]]):
        make_trainer(tmp_path / str(number), copied).fit(make_module(), loader(5))
        assert step_numbers(tmp_path / str(number)) == [[1, 2]]


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [
        # The profiled steps 1 to 3 are left out.
        *((name, {}, {1: [0], 5: [4, 5], 7: [6, 7]}) for name in PACKAGES),
        # They join the rows of the module, which are written before the step has ended.
        (PACKAGES[0], {"training_step": logging_step}, {1: [0], 5: [4], 7: [5, 6]}),
    ],
)
def test_metrics_reach_the_loggers_at_their_cadence(
    tmp_path: Path, name: str, options: dict[str, Any], steps: dict[int, list[int]]
) -> None:
    logger = recording_logger(tmp_path, name)
    trainer = make_trainer(tmp_path, three(), name, logger=logger, log_every_n_steps=2)
    trainer.fit(make_module(name, **options), loader(8))
    rows = [(step, row) for step, row in logger.rows if "perf/step_time_ms" in row]
    ours = {"perf/step_time_ms", "perf/data_wait_ms", "perf/samples_per_s"}
    assert all(ours == {key for key in row if key.startswith("perf/")} for _, row in rows)
    assert len(rows) == len(steps), "one call for each step that is logged"
    times = {row["step"]: row["step_ns"] / 1e6 for row in samples(tmp_path)}
    assert {step: row["perf/step_time_ms"] for step, row in rows} == {
        step: pytest.approx(sum(times[each] for each in of) / len(of)) for step, of in steps.items()
    }
    assert [step for step, row in logger.rows if "loss" in row] == ([1, 3, 5, 7] if options else [])


def test_validate_test_and_predict_are_left_alone(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, three())
    module = make_module(test_step=lambda self, batch, batch_idx: None)
    trainer.validate(module, loader(2), verbose=False)
    trainer.test(module, loader(2), verbose=False)
    assert not (tmp_path / "perf").exists()
    assert_untapped(trainer)
