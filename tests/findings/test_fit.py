"""Every rule about a whole fit: with its problem, just below its threshold, and on a healthy fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import lightning_perf
from lightning_perf import PerfReport
from lightning_perf.analysis.steps.fit_time import MemoryGrowth, summarize_growth
from lightning_perf.findings.finding import Finding, fit_rule
from lightning_perf.findings.fit import leak, memory_growth, worker_memory
from lightning_perf.findings.whole_run import find_in_fit
from lightning_perf.report.sections.report import short_blocks
from lightning_perf.run_files.fit.account import GcTotals, account_paths, read_account
from lightning_perf.run_files.fit.memory_growth import (
    GrowthRecord,
    MemorySample,
    TensorCensus,
    TensorGroup,
    WorkerGrowth,
)
from tests.findings import accounts
from tests.findings.accounts import FACTS, S, account, fit_time, starts
from tests.findings.recordings import finding_of, saving_of
from tests.report.support import rendered
from tests.support.shown import console_text


def found(*args: Any, **kwargs: Any) -> list[Finding]:
    return list(find_in_fit(fit_time(*args, **kwargs)))


def one(*args: Any, **kwargs: Any) -> Finding:
    (finding,) = found(*args, **kwargs)
    assert finding.per == "fit"
    assert finding.rank == 0
    return finding


def test_a_healthy_or_short_fit_has_no_finding() -> None:
    assert found() == []
    assert find_in_fit(None) == ()
    small = dict.fromkeys(accounts.USUAL, (0.001, 1))  # 90 % of the fit, but less than a second
    assert found(small | {("callbacks", "Images.on_train_batch_end"): (0.9, 10)}) == []


def test_every_rule_takes_an_empty_account() -> None:
    empty = replace(account(), wall_ns=0, entries=(), steps=0, validations=0, epochs=0)
    from lightning_perf.analysis.steps.fit_time import summarize_account

    assert fit_rule.find(summarize_account(empty)) == []


def test_worker_restarts_are_those_after_the_first_start() -> None:
    entries = {("worker start-up", "training"): (20.0, 10), ("worker start-up", "training: first batch"): (5.0, 10)}
    finding = one(entries, starts=starts(10))
    # Nine restarts of 2 s, and nine waits of 0.5 s.
    assert saving_of(finding) == (pytest.approx(0.8 * 18_000), pytest.approx(22_500))
    assert "9 times" in finding.evidence[0]
    assert "persistent_workers=True" in finding.action
    assert found(entries, starts=starts(10, persistent=True)) == []
    assert found(entries, starts=starts(1)) == []


def test_loaders_that_are_made_again_restart_workers_that_should_persist() -> None:
    made = {("data preparation", "train_dataloader"): (10.0, 10)}
    restarts = {("worker start-up", "training"): (20.0, 10), ("worker start-up", "training: first batch"): (5.0, 10)}
    finding = one({**made, **restarts}, starts=starts(10, persistent=True))
    # Nine restarts of 2 s, nine waits of 0.5 s, and nine loaders of 1 s.
    assert saving_of(finding) == (pytest.approx(0.8 * 27_000), pytest.approx(31_500))
    assert "train_dataloader makes a new loader 9 times after the first, in 9.00 s" in finding.evidence[1]
    assert "reload_dataloaders_every_n_epochs=0" in finding.action


def test_worker_restarts_beyond_the_list_and_of_both_loops_count() -> None:
    beyond = one({("worker start-up", "training"): (202.0, 101)}, starts=starts(51))
    assert beyond.saving_low_ms == pytest.approx(0.8 * 100 * 2000)
    entries = {("worker start-up", "training"): (20.0, 10), ("worker start-up", "validation"): (10.0, 10)}
    finding = one(entries, starts=(*starts(10), *starts(10, stage="validation", seconds=1.0)))
    assert finding.saving_low_ms == pytest.approx(0.8 * 27_000)
    assert "training and validation" in finding.title


@pytest.mark.parametrize(
    ("facts", "runs", "setting"),
    [
        ({}, 10, "check_val_every_n_epoch=2"),
        ({"check_val_every_n_epoch": 3}, 10, "check_val_every_n_epoch=6"),
        ({"val_check_interval": 0.25}, 10, "val_check_interval=0.5"),
        ({"val_check_interval": 100.0}, 10, "val_check_interval=200"),
        ({}, 1, "limit_val_batches=0.5"),
    ],
)
def test_long_validation(facts: dict[str, Any], runs: int, setting: str) -> None:
    entries = {("validation", "compute"): (70.0, 500)}
    finding = one(entries, facts=replace(FACTS, **facts), validations=runs)
    assert setting in finding.action
    assert "num_workers" not in finding.action
    assert finding.saving_high_ms == pytest.approx(70_500 / 2)


def test_long_validation_has_a_threshold_and_may_wait_for_data() -> None:
    waiting: Any = {("validation", "fetch"): (70.0, 500)}
    assert "in worker processes: DataLoader(…, num_workers=4)" in one(waiting).action
    in_use = one(waiting, starts=starts(10, stage="validation", persistent=True))  # four workers
    assert "which 4 worker processes make" in in_use.evidence[-1]
    assert "raise num_workers of its loader from 4" in in_use.action
    rest_s = sum(seconds for seconds, _ in accounts.USUAL.values()) - 3.5
    assert found({("validation", "compute"): (rest_s * 0.098 / 0.902 - 0.5, 100)}) == []
    assert len(found({("validation", "compute"): (rest_s * 0.102 / 0.898 - 0.5, 100)})) == 1
    # An odd number of validations keeps the larger half.
    assert one({("validation", "compute"): (29.5, 100)}, validations=3).saving_high_ms == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("entries", "saving", "said", "below"),
    [
        (
            {("checkpoints", "gather"): (4.0, 20), ("checkpoints", "write"): (16.0, 20)},
            (10_000, 16_000),
            "20 checkpoints take 1.00 s each",
            {("checkpoints", "write"): (2.5, 20)},
        ),
        (
            {("logging", "CSVLogger.log_metrics"): (10.0, 200)},
            (5000, 9000),
            "log_every_n_steps=500",
            {("logging", "CSVLogger.log_metrics"): (2.5, 200)},
        ),
        ({("logging", "WandbLogger.finalize"): (10.0, 1)}, (150, 10_270), "background", {}),
    ],
)
def test_slow_checkpoints_and_loggers(entries: Any, saving: tuple[float, float], said: str, below: Any) -> None:
    finding = one(entries)
    assert saving_of(finding) == saving
    assert said in " ".join((*finding.evidence, finding.action))
    assert found(below) == []


def test_slow_callback() -> None:
    hooks = {"on_train_batch_end": (20.0, 1000), "on_validation_end": (10.0, 2), "setup": (50.0, 1)}
    finding = one({("callbacks", f"Images.{hook}"): cost for hook, cost in hooks.items()})
    assert finding.title.startswith("Slow callback: Images takes 30.0 s")
    assert saving_of(finding) == (15_000, 27_000)
    assert "setup" not in f"{finding.evidence} {finding.action}"
    assert found({("callbacks", "Images.on_train_batch_end"): (2.5, 1000)}) == []
    assert "refresh_rate" in one({("callbacks", "TQDMProgressBar.on_train_batch_end"): (30.0, 1000)}).action


@pytest.mark.parametrize(
    ("hook", "count", "often", "longer"),
    [
        ("ModelCheckpoint.setup", 2, "once per fit", "a longer fit makes its share smaller"),
        ("Statistics.on_train_epoch_end", 1, "in one call", "may run more often in a longer one"),  # in one epoch
    ],
)
def test_a_hook_that_ran_once_is_not_to_run_less_often(hook: str, count: int, often: str, longer: str) -> None:
    finding = one({("callbacks", hook): (20.0, count)})
    assert finding.title.startswith(f"Slow callback: {hook} takes 20.0 s")
    assert finding.title.endswith(often)
    assert longer in finding.evidence[0]
    assert "less often" not in finding.action
    assert saving_of(finding) == (0, 20_000)
    assert found({("callbacks", hook): (2.5, count)}) == []


@pytest.mark.parametrize(
    ("fields", "part", "named"),
    [
        ({"compile_ns": 40 * S}, "forward", "torch.compile takes 40.0 s"),
        ({"facts": replace(FACTS, device="cuda", cudnn_benchmark=True)}, "forward", "cuDNN measures"),
        ({"facts": replace(FACTS, device="cuda")}, "forward", "CUDA loads each kernel"),
        ({}, "fetch", "first batch is loaded"),
        ({}, "optimizer", "in optimizer"),
    ],
)
def test_slow_first_step(fields: dict[str, Any], part: str, named: str) -> None:
    finding = one({("first step", part): (50.0, 1)}, **fields)
    assert named in " ".join(finding.evidence)
    # A later step takes (5 + 35 + 60) s / 1000; the other part of the first step takes 0.2 s.
    other_s = 0.0 if part == "forward" else 0.2
    assert finding.saving_high_ms == pytest.approx(1000 * (50 + other_s - 0.1))
    assert finding.saving_low_ms == 0


def test_a_first_step_like_the_others_is_not_slow() -> None:
    assert found({("first step", "forward"): (0.9, 1)}) == []
    assert found({("first step", "forward"): (50.0, 1)}, steps=1) == []


def collected(count: int, seconds: float, freed: int, objects: int) -> tuple[GcTotals, ...]:
    """Full collections, next to many short ones of newer objects."""
    time_ns = round(seconds * S)
    return (
        GcTotals(0, 10**6, 30 * S, S // 1000),
        GcTotals(1, 10**5, 30 * S, S // 1000),
        GcTotals(2, count, time_ns, time_ns // 10, count * freed, objects),
    )


def test_gc_pauses_are_half_to_all_of_the_full_collections() -> None:
    finding = one(collections=collected(20, 10.0, 0, 10**6))
    assert saving_of(finding) == (5000, 10_000)
    # The steps take 0.2 s and 100 s, and the whole fit 107.9 s.
    assert finding.title == "Garbage collection: training pauses 10.0 s (9.3 % of the fit) for full collections"
    assert finding.evidence == (
        (
            "20 full collections in steps take 500 ms each, and the longest 1.00 s. Together that is 10.0 % of "
            "the time of the steps."
        ),
        ("Each frees 0 objects, and 1,000,000 objects stay. Most of the time, the collector looks at those that stay."),
    )
    assert one(collections=collected(1, 10.0, 0, 10**6)).evidence[0] == (
        "One full collection in a step takes 10.0 s, 10.0 % of the time of the steps."
    )
    assert "gc.freeze() in on_train_start" in finding.action
    assert not finding.changes


def test_gc_pauses_of_cycles_are_not_to_be_frozen() -> None:
    few = one(collections=collected(20, 10.0, 300_000, 10**6))
    assert "gc.freeze() in" in few.action
    many = one(collections=collected(20, 10.0, 340_000, 10**6))
    assert "gc.freeze() does not help" in many.evidence[1]
    assert "gc.freeze" not in many.action
    assert saving_of(many) == (0, 10_000)


def test_short_garbage_collections_are_no_finding() -> None:
    wall_s = fit_time().wall_ns / S
    assert found(collections=collected(20, 0.029 * wall_s, 0, 10**6)) == []
    assert len(found(collections=collected(20, 0.031 * wall_s, 0, 10**6))) == 1
    assert found(collections=collected(0, 0.0, 0, 10**6)) == []
    assert found(collections=()) == []


def test_the_largest_saving_comes_first() -> None:
    both = found({("callbacks", "Images.on_train_batch_end"): (20.0, 1000), ("checkpoints", "write"): (60.0, 10)})
    assert [finding.kind for finding in both] == ["slow-checkpoints", "slow-callback"]


def test_a_report_has_the_findings_of_the_fit_everywhere(tmp_path: Path) -> None:
    report = accounts.faulty("slow-checkpoints", tmp_path)
    assert [finding.kind for finding in report.fit_findings] == ["slow-checkpoints"]
    text = console_text(report.blocks(), 100)
    assert "Findings of the whole fit" in text
    assert "Estimated saving: 10.0 s to 16.0 s of the fit (" in text
    assert "Time of the whole fit" in text
    assert "Slow checkpoints" in report.to_markdown()
    assert PerfReport.from_json(report.to_json()) == report
    short = console_text(short_blocks(report, tmp_path))
    assert "Fit    The fit takes " in short
    assert "saves 10.0 s to 16.0 s of the fit" in short


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ((("data preparation", "setup"), (101.0, 1)), "48.3 % data preparation, "),
        ((("own cost", "hooks"), (101.0, 1)), "48.3 % PerfCallback itself, "),
        ((("data preparation", "setup"), (99.0, 1)), ""),
    ],
)
def test_a_fit_with_a_larger_part_than_its_steps_is_named(tmp_path: Path, entry: Any, said: str) -> None:
    report = accounts.report_of(account(dict([entry])), tmp_path)
    assert report.fit_findings == ()
    shown = console_text(short_blocks(report, tmp_path))
    assert ("Fit    " in shown) == bool(said)
    assert said in " ".join(shown.split())


def test_the_groups_of_a_report_add_up_to_the_wall_time(tmp_path: Path) -> None:
    report = accounts.faulty("long-validation", tmp_path)
    assert report.fit_time is not None
    assert sum(group.time_ns for group in report.fit_time.groups) == report.fit_time.wall_ns
    assert sum(part.time_ns for group in report.fit_time.groups for part in group.parts) == report.fit_time.wall_ns
    assert report.fit_time.samples_per_second == pytest.approx(32 * 1001 / (report.fit_time.wall_ns / S))


def test_a_damaged_account_becomes_a_note(tmp_path: Path) -> None:
    accounts.faulty("slow-checkpoints", tmp_path)
    (path,) = account_paths(tmp_path)
    whole = path.read_bytes()
    assert read_account(path).steps == 1001
    for damaged, said in (
        (whole.replace(b'"wall_ns":', b'"wall_ns":1'), "add up to"),
        (whole.replace(b'"version":1', b'"version":2'), "has version 2"),
        (b"", "is empty or incomplete"),
        (b"[]\n", "account of a fit"),
    ):
        path.write_bytes(damaged)
        report = lightning_perf.analyze(tmp_path)
        assert report.fit_time is None
        assert any("account of the fit is left out" in note and said in note for note in report.notes), report.notes


MIB = 2**20


def group(count: int, *, size: int = 0, shape: str = "[]", graph: bool = False) -> TensorGroup:
    return TensorGroup(f"Tensor float32 {shape}", "cpu", graph, count, size)


def growth_of(level: Callable[[int], float], *censuses: TensorCensus, steps: int = 400) -> MemoryGrowth:
    found = summarize_growth(growth_record(level, *censuses, steps=steps))
    assert found is not None
    return found


def growth_record(level: Callable[[int], float], *censuses: TensorCensus, steps: int = 400) -> GrowthRecord:
    samples = tuple(MemorySample(step, int(level(step) * MIB)) for step in range(20, steps, 4))
    return GrowthRecord(0, "process", samples, censuses)


@pytest.mark.parametrize(
    ("level", "grows"),
    [
        (lambda step: 500, False),
        (lambda step: 500 + 0.1 * step, True),  # 38 MiB over the samples
        (lambda step: 500 + 0.03 * step, False),  # 11 MiB
        (lambda step: 5000 + 0.1 * step, False),  # less than 2 %
        (lambda step: 500 + 100 * (step > 200), False),  # one jump, e.g. a validation
        (lambda step: 500 + 100 * min(step, 250) / 250, False),  # a cache that is full
        (lambda step: 900 - 0.5 * step, False),
        (lambda step: 500 + 0.5 * step + 20 * (step % 8), True),  # two levels in turn
        (lambda step: 500 + 300 * (step // 100), True),  # at the ends of epochs
    ],
)
def test_growth_is_steady_and_large(level: Callable[[int], float], grows: bool) -> None:
    found = growth_of(level)
    assert (found.grows, memory_growth(found) is not None) == (grows, grows)
    assert leak(found) is None


def test_the_slope_is_that_of_the_leak() -> None:
    found = growth_of(lambda step: 500 + 0.5 * step)
    assert found.bytes_per_step == pytest.approx(0.5 * MIB, rel=1e-3)
    assert leak(found) is None  # no tensor or object is known to grow
    finding = finding_of(memory_growth, found)
    assert finding.title == "Memory grows by 512 KiB per step"
    assert "were not counted twice" in finding.evidence[0]
    assert (finding.per, finding.saving_high_ms, finding.severity) == ("fit", None, "low")


def test_few_samples_give_nothing() -> None:
    samples = tuple(MemorySample(step, step * 100 * MIB) for step in range(15))
    assert summarize_growth(GrowthRecord(0, "process", samples, ())) is None


def test_the_kind_of_tensor_that_grows() -> None:
    before = TensorCensus(50, (group(10, size=5 * MIB, shape="[128]"), group(7)))
    after = TensorCensus(150, (group(110, size=55 * MIB, shape="[128]"), group(8), group(3, size=9, shape="[9]")))
    found = growth_of(lambda step: 500 + 0.5 * step, before, after)
    assert (found.counted_steps, [(row.kind, row.count, row.bytes) for row in found.tensors]) == (
        100,
        [("Tensor float32 [128]", 100, 50 * MIB), ("Tensor float32 [9]", 3, 9), ("Tensor float32 []", 1, 0)],
    )
    finding = finding_of(leak, found)
    expected = "In 100 steps, 100 more Tensor float32 [128] on cpu hold 50.0 MiB, 512 KiB per step."
    assert finding.evidence[1] == expected
    assert "clear it in on_train_epoch_end" in finding.action


def test_losses_that_keep_their_graphs() -> None:
    before, after = (TensorCensus(step, (group(step, size=4 * step, graph=True),)) for step in (50, 150))
    finding = finding_of(leak, growth_of(lambda step: 500 + 0.5 * step, before, after))
    assert "100 more Tensor float32 []" in finding.evidence[1]
    assert "keep their graphs of autograd alive" in finding.evidence[1]
    assert "loss.detach()" in finding.action


def test_growth_outside_of_tensors() -> None:
    before, after = (TensorCensus(step, (group(7, size=100),)) for step in (50, 150))
    record = growth_record(lambda step: 500 + 0.5 * step, before, after)
    for lengths, advice in ((300, "Pad to few lengths"), (1, "Train longer")):
        found = summarize_growth(record, 100 + np.arange(1000) % lengths)
        assert found is not None
        assert (leak(found), found.batch_lengths) == (None, lengths)
        finding = finding_of(memory_growth, found)
        assert "no kind of tensor and no list, dictionary or set was found that explains it" in finding.evidence[0]
        assert finding.action.startswith(advice)


@pytest.mark.parametrize(
    ("last_mib", "resident_mib", "container", "fires"),
    [
        (67, 1, "items: 600,000 objects in a list", True),
        (67, 50, "items: 600,000 objects in a list", False),  # new memory, e.g. of a decoder
        (67, 1, "", False),  # the recording does not show what is copied
        (25, 1, "items: 600,000 objects in a list", False),
    ],
)
def test_workers_that_copy_the_data_set(last_mib: int, resident_mib: int, container: str, fires: bool) -> None:
    worker = WorkerGrowth(2, 0, 320, 14 * MIB, last_mib * MIB, resident_mib * MIB, 58 * MIB, container)
    growth = summarize_growth(replace(growth_record(lambda _: 500), worker=worker))
    assert growth is not None
    finding = worker_memory(growth)
    assert (finding is not None) == fires
    if finding is not None:
        assert finding.title == "Workers copy the data set: 104 MiB in 2 processes"
        assert "600,000 objects in a list (items)" in finding.evidence[1]
        assert finding.severity == "low"


@pytest.mark.parametrize(("item_mib", "fires"), [(50, True), (11, True), (9, False), (0, False)])
def test_objects_that_each_step_keeps_are_a_leak_if_they_are_large_enough(item_mib: int, fires: bool) -> None:
    censuses = TensorCensus(50, ()), TensorCensus(150, (), 100, item_mib * MIB)
    found = growth_of(lambda step: 500 + 0.5 * step, *censuses)  # 50 MiB in 100 steps
    assert (leak(found) is not None, memory_growth(found) is None) == (fires, fires)
    if fires:
        finding = finding_of(leak, found)
        assert f"one list, dictionary or set got 100 more items of about {item_mib:.1f} MiB" in finding.evidence[1]
        assert "list, dictionary or cache" in finding.action


@pytest.mark.parametrize(("waited_s", "said"), [(1, False), (40, True)])
def test_waits_for_a_core_are_shown_with_the_time_of_the_fit(tmp_path: Path, waited_s: int, said: bool) -> None:
    report = accounts.report_of(account(core_wait_ns=waited_s * S), tmp_path)
    assert ("The training thread waited for a core: 40.0 s" in rendered(report)) == said
