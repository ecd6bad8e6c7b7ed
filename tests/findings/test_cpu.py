"""Rules about cpu."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.findings.cpu import (
    cpu_bf16,
    cpu_channels_last,
    cpu_overhead,
    cpu_page_faults,
    cpu_pauses,
    cpu_threads,
)
from lightning_perf.trace.metadata import LOADER_KEY, LOOP_KEY, PROCESSOR_KEY
from tests.findings.host_recordings import ACTIVATIONS, WEIGHTS, convolving, on_processor
from tests.findings.recordings import A100, analysis, finding_of
from tests.support.trace_builder import FETCH, TraceBuilder


def test_fp32_on_a_processor_with_avx512_bf16() -> None:
    finding = finding_of(cpu_bf16, convolving(on_processor(bf16=["avx512_bf16"])))
    assert finding.severity == "high"
    assert 'precision="bf16-mixed"' in finding.action
    assert "A CPU has avx512_bf16" in finding.evidence[0]
    # 8 ms of products speed up 1.5 to 2.75 times; 2 calls of 80 to 10 µs and the weight's casts, 3 to 0.3 ns each.
    low_ms = 8 * (1 - 1 / 1.5) - 2 * 0.08 - WEIGHTS * 3e-6
    high_ms = 8 * (1 - 1 / 2.75) - 2 * 0.01 - WEIGHTS * 0.3e-6 + 0.9 * (1 - 1 / 2.5)
    assert finding.saving_low_ms == pytest.approx(low_ms)
    assert finding.saving_high_ms == pytest.approx(high_ms)


def test_the_fastest_instruction_counts() -> None:
    slow, fast = (
        cpu_bf16(analysis(convolving(on_processor(bf16=flags))))
        for flags in (["avx512_bf16"], ["amx_bf16", "avx512_bf16"])
    )
    assert slow is not None
    assert fast is not None
    assert "amx_bf16" in fast.evidence[0]
    assert (fast.saving_high_ms or 0) > (slow.saving_high_ms or 0)
    assert fast.saving_low_ms == slow.saving_low_ms


@pytest.mark.parametrize("flags", [[], None, ["something_new"]])
def test_a_processor_without_it_or_unknown(flags: list[str] | None) -> None:
    assert cpu_bf16(analysis(convolving(on_processor(bf16=flags)))) is None


def test_bfloat16_is_in_use() -> None:
    assert cpu_bf16(analysis(convolving(on_processor(bf16=["avx512_bf16"]), dtype="c10::BFloat16"))) is None


def test_a_recording_without_input_types() -> None:
    builder = convolving(on_processor(bf16=["avx512_bf16"]))
    for event in builder.events:
        event["args"].pop("Input type", None)
    assert cpu_bf16(analysis(builder)) is None


def test_a_training_on_a_device_whose_work_was_not_recorded() -> None:
    assert cpu_bf16(analysis(convolving(on_processor(bf16=["avx512_bf16"], trains=False)))) is None


def test_grouped_convolutions_may_get_slower() -> None:
    assert cpu_bf16(analysis(convolving(on_processor(bf16=["avx512_bf16"]), groups=16))) is None


def tiny_products(us: float) -> float | None:
    builder = on_processor(bf16=["avx512_bf16"])
    for step in range(3):
        builder.step(step, step * 1000, 1000)
        for number in range(10):
            builder.op("aten::mm", step * 1000 + 100 * number, us, types=["float"] * 2, dims=[[8, 8]] * 2)
    finding = cpu_bf16(analysis(builder))
    return finding.saving_low_ms if finding is not None else None


def test_tiny_products_are_not_worth_their_casts() -> None:
    assert tiny_products(99) is None  # a call saves a third of 99 µs at least, and costs up to 80


def linear_layer(elements: int) -> float | None:
    """The least saving of a linear layer that computes for 9 ms a step, with a weight of so many elements."""
    builder = on_processor(bf16=["avx512_bf16"])
    rows = elements // 4096
    for start in builder.steps(3, 10_000):
        builder.op("aten::linear", start, 9100, types=["float"] * 3, dims=[[4, 4096], [rows, 4096], [rows]])
        builder.op("aten::addmm", start + 50, 9000, types=["float"] * 3, dims=[[rows], [4, 4096], [4096, rows]])
    finding = cpu_bf16(analysis(builder))
    return finding.saving_low_ms if finding is not None else None


def test_large_weights_are_not_worth_their_casts() -> None:
    # 16.8 million elements at up to 3 ns are more than any speed-up of 9 ms.
    assert linear_layer(4096 * 4096) is None


def test_a_linear_layer_and_the_product_that_it_calls_count_once() -> None:
    # 9.1 ms save a third at least; one call costs up to 80 µs, half a million elements up to 3 ns each.
    assert linear_layer(128 * 4096) == pytest.approx(9.1 / 3 - 0.08 - 128 * 4096 * 3e-6)


def attending(queries: int) -> float | None:
    """The least saving of a step with 6 ms of products and 4 ms of attention."""
    builder = on_processor(bf16=["avx512_bf16"])
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
    for start in builder.steps(3, 10_000):
        builder.op("aten::mm", start, 6000, types=["float"] * 2, dims=[[8, 8]] * 2)
        for name, at, us in ((attention, 6000, 1500), (f"{attention}_backward", 7500, 2500)):
            dims = [[2, 4, queries, 64]] * 3
            builder.op(name, start + at, us, types=["float"] * 3, dims=dims)
    finding = cpu_bf16(analysis(builder))
    return finding.saving_low_ms if finding is not None else None


def test_attention_of_short_sequences_may_take_what_products_save() -> None:
    assert attending(511) is None
    assert attending(512) == pytest.approx(6 / 3 - 0.08 - 4 * (1 / 0.85 - 1))


LOW_OTHERS_MS = 1 * (1 - 1 / 3) + 0.4 * (1 - 1 / 1.5) + 0.5 * (1 - 1 / 1.2)
HIGH_OTHERS_MS = 1 * (1 - 1 / 14) + 0.4 * (1 - 1 / 4.5) + 0.5 * (1 - 1 / 2.6)


@pytest.mark.parametrize(("dtype", "size"), [("float", 1.0), ("c10::BFloat16", 0.5)])
@pytest.mark.parametrize("threads", [1, 4])
def test_channels_first(dtype: str, size: float, threads: int) -> None:
    finding = finding_of(cpu_channels_last, convolving(on_processor(threads=threads), dtype=dtype))
    assert "model.to(memory_format=torch.channels_last)" in finding.action
    assert "8.00 ms per step in convolutions, 1.00 ms per step in pooling" in finding.evidence[0]
    pace = size * 1e-6 / threads
    assert finding.saving_low_ms == pytest.approx((-0.3 * ACTIVATIONS - 2.2 * WEIGHTS) * pace + LOW_OTHERS_MS)
    assert finding.saving_high_ms == pytest.approx((3.5 * ACTIVATIONS - 1.0 * WEIGHTS) * pace + HIGH_OTHERS_MS)


def test_the_recording_tells_by_itself_whatever_wrote_it() -> None:
    assert cpu_channels_last(analysis(convolving(TraceBuilder()))) is not None


def test_channels_last() -> None:
    assert cpu_channels_last(analysis(convolving(on_processor(), layout="last"))) is None


def test_a_recording_without_strides() -> None:
    builder = convolving(on_processor())
    for event in builder.events:
        event["args"].pop("Input Strides", None)
    assert cpu_channels_last(analysis(builder)) is None


def test_a_training_on_a_device() -> None:
    builder = convolving(TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100))
    assert cpu_channels_last(analysis(builder)) is None
    builder.launch("gemm", call_us=10, call_duration_us=5, start_us=20, duration_us=9000)
    assert cpu_channels_last(analysis(builder)) is None


def test_large_weights_on_few_pixels() -> None:
    builder = on_processor()
    for step in range(3):
        builder.step(step, step * 10_000, 10_000)
        for name, at, shapes in (
            ("aten::mkldnn_convolution", 0, [[2, 512, 2, 2], [512, 512, 3, 3]]),
            ("aten::convolution_backward", 5000, [[2, 512, 2, 2], [2, 512, 2, 2], [512, 512, 3, 3]]),
        ):
            ordered = [[c * h * w, h * w, w, 1] for _, c, h, w in shapes]
            given: dict[str, Any] = {"dims": shapes, "Input Strides": ordered}
            builder.op(name, step * 10_000 + at, 5000, types=["float"] * len(shapes), **given)
    assert cpu_channels_last(analysis(builder)) is None


def calling(operator_us: float, every_us: float, *, builder: TraceBuilder | None = None) -> TraceBuilder:
    """Steps of 2 ms of operators at even distances."""
    builder = builder or on_processor()
    for start in builder.steps(3, 2000):
        for number in range(int(2000 / every_us)):
            builder.op("aten::add", start + every_us * number, operator_us)
    return builder


def test_short_operators_and_the_python_between_them() -> None:
    finding = finding_of(cpu_overhead, calling(5, 20))
    assert "batch_size" in finding.action
    assert "100 of 100 operators per step are shorter than 10 µs, 500 µs together" in finding.evidence[0]
    assert "take 1.50 ms" in finding.evidence[0]
    assert finding.saving_low_ms == pytest.approx(0.3 * 2)
    assert finding.saving_high_ms == pytest.approx(0.75 * 2)


def test_operators_that_compute() -> None:
    assert cpu_overhead(analysis(calling(15, 20))) is None


@pytest.mark.parametrize(("operator_us", "fires"), [(57, True), (63, False)])
def test_from_40_percent_of_the_step_on(operator_us: float, fires: bool) -> None:
    assert (cpu_overhead(analysis(calling(operator_us, 100))) is not None) == fires


def test_waiting_is_not_calling() -> None:
    builder = on_processor()
    for step in range(3):
        builder.step(step, step * 10_000, 10_000).op("aten::add", step * 10_000, 100)  # and 9.9 ms of nothing
    assert cpu_overhead(analysis(builder)) is None


def test_fetching_is_not_calling() -> None:
    builder = on_processor()
    for start in builder.steps(3, 1000):
        builder.op("aten::mm", start + 600, 400)
        builder.annotation(FETCH, start, 600)
    assert cpu_overhead(analysis(builder)) is None


def test_overhead_on_a_device() -> None:
    assert cpu_overhead(analysis(calling(5, 20, builder=on_processor(trains=False)))) is None
    with_device = calling(5, 20).launch("gemm", call_us=1, call_duration_us=2, start_us=4, duration_us=1900)
    assert cpu_overhead(analysis(with_device)) is None


def test_a_recording_that_does_not_tell_what_trains() -> None:
    assert cpu_overhead(analysis(calling(5, 20, builder=TraceBuilder()))) is None


def of_batches(batches: int | None) -> TraceBuilder:
    """An empty recording of a training with some batches per epoch."""
    builder = on_processor()
    builder.top_level[LOADER_KEY] = {"kind": "map", "batches_per_epoch": batches}
    return builder


def test_a_batch_that_is_the_whole_data_set_does_not_grow() -> None:
    def overhead(batches: int | None) -> tuple[str, str, float | None]:
        builder = of_batches(batches)
        finding = finding_of(cpu_overhead, calling(5, 20, builder=builder))
        return finding.action, " ".join(finding.evidence), finding.saving_low_ms

    action, evidence, low_ms = overhead(1)
    assert action == "Merge operators: model = torch.compile(model). lightning-perf tune measures it."
    assert "the whole data set" in evidence
    assert low_ms == 0
    action, evidence, low_ms = overhead(2)
    assert "raise batch_size" in action
    assert "more than one batch" not in evidence
    action, evidence, low_ms = overhead(None)
    assert "raise batch_size" in action
    assert "does not show whether the data set has more than one batch" in evidence


@pytest.mark.parametrize("batches", [1, 100])
def test_a_compiled_model_is_not_to_be_compiled(batches: int) -> None:
    builder = of_batches(batches)
    builder.op("Torch-Compiled Region: 0/0", 0, 2000).op("Torch-Compiled Region: 0/0", 2000, 2000)
    finding = cpu_overhead(analysis(calling(5, 20, builder=builder)))
    assert (finding is None) == (batches == 1)  # nothing is left to advise
    if finding is not None:
        assert "torch.compile" not in finding.action
        assert "The model is compiled already." in finding.evidence


FAULTING = {"trains": True, "page_faults": 1000.0, "page_fault_ns": 2000.0, "allocator": "glibc"}


def recording(**changes: Any) -> TraceBuilder:
    """Three steps of 10 ms; of each, faults take 2 ms."""
    return convolving(TraceBuilder(**{PROCESSOR_KEY: FAULTING | changes}))


def test_memory_that_is_given_back() -> None:
    finding = finding_of(cpu_page_faults, recording())
    assert finding.title.startswith("Page faults: 1,000 per step")
    assert "2.00 ms per step, 20.0 %" in finding.evidence[0]
    assert "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184" in finding.action
    assert (finding.saving_low_ms, finding.saving_high_ms) == (1.0, 2.5)
    assert finding.severity == "high"


def test_no_more_is_saved_than_operators_take() -> None:
    finding = finding_of(cpu_page_faults, recording(page_faults=50_000.0))
    assert finding.saving_low_ms == finding.saving_high_ms
    assert finding.saving_high_ms == pytest.approx(10, abs=0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"page_faults": None},
        {"page_faults": 0.0},
        {"page_faults": 100.0},  # 0.25 ms of 10 at most
        {"page_fault_ns": None},
        {"allocator": "jemalloc"},
        {"allocator": None},
        {"trains": False},
    ],
    ids=str,
)
def test_nothing_to_find(changes: dict[str, Any]) -> None:
    assert cpu_page_faults(analysis(recording(**changes))) is None


def test_recordings_of_others() -> None:
    assert cpu_page_faults(analysis(convolving(TraceBuilder()))) is None


STEP_US = 100_000


def pausing(
    phase: str = "forward",
    pause_us: float = 30_000,
    *,
    pauses_us: tuple[float, ...] = (),
    function: str = "",
    **top: Any,
) -> TraceBuilder:
    """Steps of 100 ms: operators of 34 ms in forward and backward each, and a pause in one phase of each step."""
    builder = on_processor(**top)
    for number, start in enumerate(builder.steps(len(pauses_us) or 5, STEP_US)):
        paused = pauses_us[number] if pauses_us else pause_us
        now = float(start)
        for name, operators_us in (("transfer", 0), ("forward", 34_000), ("backward", 34_000), ("optimizer", 500)):
            length = operators_us + (paused if name == phase else 0)
            if length:
                builder.annotation(f"perf::{name}", now, length)
            if function and name == phase:
                builder.host("python_function", "train.py(1): main", start, STEP_US)
                builder.host("python_function", function, now, length)
                builder.host("python_function", "<built-in function sleep>", now, paused)
            now += length - operators_us
            for _ in range(int(operators_us / 500)):
                builder.op("aten::mm", now, 500)
                now += 500
        if phase == "other":
            now += paused
        builder.op("aten::add", now, start + STEP_US - now)  # whatever else the step has is operators
    return builder


def loop(hooks: dict[str, int] | None, loggers: tuple[str, ...] = (), every: int = 1) -> dict[str, Any]:
    """The facts that `PerfCallback` notes about the loop, with the time of each hook in µs per step."""
    times = None if hooks is None else {name: 5 * 1000 * us for name, us in hooks.items()}
    return {LOOP_KEY: {"steps": 5, "hooks_ns": times, "loggers": list(loggers), "log_every_n_steps": every}}


def test_a_pause_in_forward() -> None:
    finding = finding_of(cpu_pauses, pausing())
    assert finding.title == "Pauses: 30.0 ms per step outside operators in forward"
    assert finding.evidence[0].startswith("The training thread runs no operator for 30.0 % of the step")
    assert (finding.saving_low_ms, finding.saving_high_ms) == (15, 30)
    assert finding.severity == "high"
    assert "training_step" in finding.action
    assert "with_stack=True" in finding.action


@pytest.mark.parametrize(
    ("phase", "place"),
    [("transfer", "while a batch is moved"), ("backward", "in backward"), ("optimizer", "in the optimizer step")],
)
def test_the_phase_is_named(phase: str, place: str) -> None:
    finding = finding_of(cpu_pauses, pausing(phase))
    assert finding.title.endswith(place)


@pytest.mark.parametrize(("pause_us", "fires"), [(4_900, False), (5_100, True)])
def test_from_5_percent_of_the_step_on(pause_us: float, fires: bool) -> None:
    assert (cpu_pauses(analysis(pausing(pause_us=pause_us))) is not None) == fires


def test_the_median_step_decides_and_on_a_busy_machine_the_shortest() -> None:
    once = (0, 0, 90, 20_000, 25_000)
    assert cpu_pauses(analysis(pausing(pauses_us=once))) is None
    mostly = (0, 20_000, 22_000, 24_000, 20_000)
    finding = finding_of(cpu_pauses, pausing(pauses_us=mostly))
    assert finding.saving_high_ms == pytest.approx(20)
    assert cpu_pauses(analysis(pausing(pauses_us=mostly, load=30.0))) is None
    always = finding_of(cpu_pauses, pausing(pauses_us=(20_000, 30_000, 30_000, 30_000, 30_000), load=30.0))
    assert always.saving_high_ms == pytest.approx(20)


def test_short_gaps_between_operators_are_no_pauses() -> None:
    builder = on_processor()
    for start in builder.steps(4, 10_000):
        builder.annotation("perf::forward", start, 10_000)
        for number in range(10):
            builder.op("aten::mm", start + 1000 * number, 100)  # and 900 µs of Python
    assert cpu_pauses(analysis(builder)) is None


def test_the_hook_with_the_time_is_named() -> None:
    hooks = {"Early.on_train_batch_start": 1_000, "Slow.on_train_batch_end": 29_000, "Net.training_step": 70_000}
    finding = finding_of(cpu_pauses, pausing("other", **loop(hooks)))
    assert finding.title.endswith("between batches, in Slow.on_train_batch_end")
    assert "Slow.on_train_batch_end takes 29.0 ms per step." in finding.evidence
    # A hook of another phase is not the cause, however long it takes.
    elsewhere = finding_of(cpu_pauses, pausing("transfer", **loop(hooks)))
    assert elsewhere.title.endswith("while a batch is moved")


def test_optimizer_step_of_the_module_is_named_as_such() -> None:
    finding = finding_of(cpu_pauses, pausing("other", **loop({"Net.optimizer_step": 30_000})))
    assert finding.title.endswith("in the optimizer step, in Net.optimizer_step")


@pytest.mark.parametrize(("every", "named"), [(1, True), (10, False)])
def test_the_logger_is_named_if_no_hook_takes_the_time_and_it_logs_in_every_step(every: int, named: bool) -> None:
    facts = loop({"Quick.on_train_batch_end": 40}, ("CSVLogger",), every)
    finding = finding_of(cpu_pauses, pausing("other", **facts))
    assert finding.title.endswith("in the logger CSVLogger") == named
    assert ("Trainer(log_every_n_steps=50)" in finding.action) == named
    # Hooks that were not timed, as with a profiler of the user's own, exclude nothing.
    untimed = finding_of(cpu_pauses, pausing("other", **loop(None, ("CSVLogger",))))
    assert "CSVLogger" not in untimed.title


def test_stacks_name_the_user_s_function_and_its_line() -> None:
    finding = finding_of(cpu_pauses, pausing(function="train.py(20): training_step", with_stack=1))
    assert finding.title.endswith("in forward, in training_step (train.py:20)")
    assert "with_stack" not in finding.action


def test_others_recordings_and_devices() -> None:
    assert cpu_pauses(analysis(pausing(trains=False))) is None
    several = pausing("backward").rank(0, 2, backend="gloo")  # it may wait for the other rank
    assert cpu_pauses(analysis(several)) is None
    assert cpu_pauses(analysis(pausing("forward").rank(0, 2, backend="gloo"))) is not None
    foreign = pausing()
    for event in foreign.events:
        event["name"] = event["name"].replace("perf::", "mine::")
    assert cpu_pauses(analysis(foreign)) is None


def test_the_operators_around_a_pause_are_its_place() -> None:
    finding = finding_of(cpu_pauses, pausing("optimizer"))
    assert "callbacks: most of the time is after aten::mm and before aten::mm." in finding.action
    assert finding.action.endswith("record with PerfCallback(with_stack=True).")


@pytest.mark.parametrize(("threads", "least"), [(1, 1.6), (2, 1.6), (4, 1.2)])
def test_few_threads_on_eight_cores(threads: int, least: float) -> None:
    finding = finding_of(cpu_threads, convolving(on_processor(threads=threads)))
    assert "torch.set_num_threads(8)" in finding.action
    # 9.9 ms of the step are large operators.
    assert finding.saving_low_ms == pytest.approx(9.9 * (1 - 1 / least))
    assert finding.saving_high_ms == pytest.approx(9.9 * (1 - threads / 8))


@pytest.mark.parametrize("threads", [5, 8, 16])
def test_enough_threads(threads: int) -> None:
    assert cpu_threads(analysis(convolving(on_processor(threads=threads)))) is None


@pytest.mark.parametrize(("load", "fires"), [(0.0, True), (5.5, True), (5.7, False), (40.0, False)])
def test_cores_may_be_in_use(load: float, fires: bool) -> None:
    assert (cpu_threads(analysis(convolving(on_processor(threads=1, load=load)))) is not None) == fires


def test_cores_may_be_the_workers() -> None:
    builder = convolving(on_processor(threads=4))
    for step in range(3):
        builder.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", step * 10_000 + 9990, 5)
    finding = finding_of(cpu_threads, builder)
    assert finding.saving_low_ms == 0
    assert finding.saving_high_ms == pytest.approx(9.9 / 2, rel=0.01)


def test_cores_may_be_other_ranks() -> None:
    assert cpu_threads(analysis(convolving(on_processor(threads=1)).rank(0, 8, backend="gloo"))) is None


def test_small_operators_are_not_divided() -> None:
    builder = on_processor(threads=1)
    for step in range(3):
        builder.step(step, step * 1000, 1000)
        for number in range(20):
            builder.op("aten::mm", step * 1000 + 50 * number, 45, types=["float"] * 2, dims=[[8, 8]] * 2)
    assert cpu_threads(analysis(builder)) is None


def test_an_unknown_processor_or_a_device() -> None:
    assert cpu_threads(analysis(convolving(on_processor(threads=1, trains=False)))) is None
    assert cpu_threads(analysis(convolving(type(on_processor())()))) is None
