"""Trainings on a processor, on recordings with known times."""

from pathlib import Path
from typing import Any

import pytest

import lightning_perf
from lightning_perf.findings.cpu import (
    cpu_bf16,
    cpu_channels_last,
    cpu_overhead,
    cpu_pauses,
    cpu_threads,
    thread_contention,
)
from lightning_perf.findings.memory import cpu_page_faults
from lightning_perf.trace.description import LOADER_KEY, LOOP_KEY, PROCESSOR_KEY
from tests.findings.host_recordings import ACTIVATIONS, WEIGHTS, convolving, on_processor, strides
from tests.findings.recordings import A100, Rule, analysis, finding_of, saving_of
from tests.support.trace_builder import FETCH, TraceBuilder


def test_fp32_on_a_processor_with_avx512_bf16() -> None:
    finding = finding_of(cpu_bf16, convolving(on_processor(bf16=["avx512_bf16"])))
    assert finding.severity == "high"
    assert 'precision="bf16-mixed"' in finding.action
    assert "A CPU has avx512_bf16" in finding.evidence[0]
    # 8 ms of products speed up 1.5 to 2.75 times; 2 calls of 80 to 10 µs and the weight's casts, 3 to 0.3 ns each.
    low_ms = 8 * (1 - 1 / 1.5) - 2 * 0.08 - WEIGHTS * 3e-6
    high_ms = 8 * (1 - 1 / 2.75) - 2 * 0.01 - WEIGHTS * 0.3e-6 + 0.9 * (1 - 1 / 2.5)
    assert saving_of(finding) == pytest.approx((low_ms, high_ms))


def test_the_fastest_instruction_counts() -> None:
    slow, fast = (
        finding_of(cpu_bf16, convolving(on_processor(bf16=flags)))
        for flags in (["avx512_bf16"], ["amx_bf16", "avx512_bf16"])
    )
    assert "amx_bf16" in fast.evidence[0]
    assert saving_of(fast)[1] > saving_of(slow)[1]
    assert fast.saving_low_ms == slow.saving_low_ms


def linear_layer(elements: int) -> TraceBuilder:
    """A linear layer that computes for 9 ms a step, with a weight of so many elements."""
    builder = on_processor(bf16=["avx512_bf16"])
    rows = elements // 4096
    for start in builder.steps(3, 10_000):
        builder.op("aten::linear", start, 9100, types=["float"] * 3, dims=[[4, 4096], [rows, 4096], [rows]])
        builder.op("aten::addmm", start + 50, 9000, types=["float"] * 3, dims=[[rows], [4, 4096], [4096, rows]])
    return builder


def attending(queries: int) -> TraceBuilder:
    """A step with 6 ms of products and 4 ms of attention."""
    builder = on_processor(bf16=["avx512_bf16"])
    attention, dims = "aten::_scaled_dot_product_flash_attention_for_cpu", [[2, 4, queries, 64]] * 3
    for start in builder.steps(3, 10_000):
        builder.op("aten::mm", start, 6000, types=["float"] * 2, dims=[[8, 8]] * 2)
        builder.op(attention, start + 6000, 1500, types=["float"] * 3, dims=dims)
        builder.op(f"{attention}_backward", start + 7500, 2500, types=["float"] * 3, dims=dims)
    return builder


@pytest.mark.parametrize(
    ("recorded", "least_ms"),
    [
        # The layer and its product count once: 9.1 ms save a third at least; one call costs up to 80 µs, half a million
        # elements up to 3 ns each.
        (linear_layer(128 * 4096), 9.1 / 3 - 0.08 - 128 * 4096 * 3e-6),
        (attending(512), 6 / 3 - 0.08 - 4 * (1 / 0.85 - 1)),  # attention may take what products save
    ],
)
def test_the_least_that_layers_save(recorded: TraceBuilder, least_ms: float) -> None:
    assert saving_of(finding_of(cpu_bf16, recorded))[0] == pytest.approx(least_ms)


LOW_OTHERS_MS = 1 * (1 - 1 / 3) + 0.4 * (1 - 1 / 1.5) + 0.5 * (1 - 1 / 1.2)
HIGH_OTHERS_MS = 1 * (1 - 1 / 14) + 0.4 * (1 - 1 / 4.5) + 0.5 * (1 - 1 / 2.6)


@pytest.mark.parametrize(("dtype", "size"), [("float", 1.0), ("c10::BFloat16", 0.5)])
@pytest.mark.parametrize("threads", [1, 4])
def test_channels_first(dtype: str, size: float, threads: int) -> None:
    finding = finding_of(cpu_channels_last, convolving(on_processor(threads=threads), dtype=dtype))
    assert "model.to(memory_format=torch.channels_last)" in finding.action
    assert "8.00 ms per step in convolutions, 1.00 ms per step in pooling" in finding.evidence[0]
    pace = size * 1e-6 / threads
    low_ms = (-0.3 * ACTIVATIONS - 2.2 * WEIGHTS) * pace + LOW_OTHERS_MS
    high_ms = (3.5 * ACTIVATIONS - 1.0 * WEIGHTS) * pace + HIGH_OTHERS_MS
    assert saving_of(finding) == pytest.approx((low_ms, high_ms))


def deep_layers() -> TraceBuilder:
    """Convolutions with large weights on few pixels."""
    builder = on_processor()
    for start in builder.steps(3, 10_000):
        for name, at, shapes in (
            ("aten::mkldnn_convolution", 0, [[2, 512, 2, 2], [512, 512, 3, 3]]),
            ("aten::convolution_backward", 5000, [[2, 512, 2, 2], [2, 512, 2, 2], [512, 512, 3, 3]]),
        ):
            given: dict[str, Any] = {"dims": shapes, "Input Strides": [strides(shape, "first") for shape in shapes]}
            builder.op(name, start + at, 5000, types=["float"] * len(shapes), **given)
    return builder


def lacking(builder: TraceBuilder, argument: str) -> TraceBuilder:
    """The same recording without an argument of its operators."""
    for event in builder.events:
        event["args"].pop(argument, None)
    return builder


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
    assert saving_of(finding) == pytest.approx((0.3 * 2, 0.75 * 2))


def idling(wait_us: int, *, fetches: bool) -> TraceBuilder:
    """Steps with 400 µs of a product after a wait, in which they fetch or do nothing."""
    builder = on_processor()
    for start in builder.steps(3, wait_us + 400):
        builder.op("aten::mm", start + wait_us, 400)
        if fetches:
            builder.annotation(FETCH, start, wait_us)
    return builder


def of_batches(batches: int | None) -> TraceBuilder:
    """An empty recording of a training with some batches per epoch."""
    builder = on_processor()
    builder.top_level[LOADER_KEY] = {"kind": "map", "batches_per_epoch": batches}
    return builder


@pytest.mark.parametrize(
    ("batches", "action", "evidence"),
    [
        (1, "Merge operators: model = torch.compile(model). lightning-perf tune measures it.", "the whole data set"),
        (2, "raise batch_size", "shorter than 10 µs"),
        (None, "raise batch_size", "does not show whether the data set has more than one batch"),
    ],
)
def test_a_batch_that_is_the_whole_data_set_does_not_grow(batches: int | None, action: str, evidence: str) -> None:
    finding = finding_of(cpu_overhead, calling(5, 20, builder=of_batches(batches)))
    assert action in finding.action
    assert evidence in finding.evidence[-1]
    assert (finding.saving_low_ms == 0) == (batches == 1)


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
    assert saving_of(finding) == (1.0, 2.5)
    assert finding.severity == "high"


def test_no_more_is_saved_than_operators_take() -> None:
    finding = finding_of(cpu_page_faults, recording(page_faults=50_000.0))
    assert finding.saving_low_ms == finding.saving_high_ms
    assert finding.saving_high_ms == pytest.approx(10, abs=0.5)
    assert ": 10.0 ms per step, 100 %." in finding.evidence[0]  # measured: "145.9 %"


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


def in_barrier(name: str) -> TraceBuilder:
    """Pauses in forward while a collective runs."""
    builder = pausing().rank(0, 2, backend="gloo")
    for event in [event for event in builder.events if event["name"] == "perf::forward"]:
        builder.annotation(name, event["ts"], 30_000)
    return builder


@pytest.mark.parametrize(("name", "waits"), [("gloo:barrier", True), ("mine", False)])
def test_waits_for_other_ranks_are_no_pauses(name: str, waits: bool) -> None:
    assert (cpu_pauses(analysis(in_barrier(name))) is None) == waits


def test_a_pause_in_forward() -> None:
    finding = finding_of(cpu_pauses, pausing())
    assert finding.title == "Pauses: 30.0 ms per step outside operators in forward"
    assert finding.evidence[0].startswith("The training thread runs no operator for 30.0 % of the step")
    assert saving_of(finding) == (15, 30)
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


def test_the_median_step_decides_and_on_a_busy_machine_the_shortest() -> None:
    mostly = (0, 20_000, 22_000, 24_000, 20_000)
    finding = finding_of(cpu_pauses, pausing(pauses_us=mostly))
    assert finding.saving_high_ms == pytest.approx(20)
    always = finding_of(cpu_pauses, pausing(pauses_us=(20_000, 30_000, 30_000, 30_000, 30_000), load=30.0))
    assert always.saving_high_ms == pytest.approx(20)


def test_the_hook_with_the_time_is_named() -> None:
    hooks = {"Early.on_train_batch_start": 1_000, "Slow.on_train_batch_end": 29_000, "Net.training_step": 70_000}
    finding = finding_of(cpu_pauses, pausing("other", **loop(hooks)))
    assert finding.title.endswith("between the phases, in Slow.on_train_batch_end")
    assert finding.part == "Slow.on_train_batch_end"
    assert "Slow.on_train_batch_end takes 29.0 ms per step." in finding.evidence
    # A hook of another phase is not the cause, however long it takes.
    elsewhere = finding_of(cpu_pauses, pausing("transfer", **loop(hooks)))
    assert elsewhere.title.endswith("while a batch is moved")
    before = finding_of(cpu_pauses, pausing("other", **loop({"Net.on_before_zero_grad": 29_000})))
    assert before.title.endswith("between the phases, in Net.on_before_zero_grad")
    module = finding_of(cpu_pauses, pausing("other", **loop({"Net.optimizer_step": 30_000})))
    assert module.title.endswith("in the optimizer step, in Net.optimizer_step")


@pytest.mark.parametrize(("every", "named"), [(1, True), (10, False)])
def test_the_logger_is_named_if_no_hook_takes_the_time_and_it_logs_in_every_step(every: int, named: bool) -> None:
    facts = loop({"Quick.on_train_batch_end": 40}, ("CSVLogger",), every)
    finding = finding_of(cpu_pauses, pausing("other", **facts))
    assert finding.title.endswith("in the logger CSVLogger") == (finding.part == "logging") == named
    assert ("Trainer(log_every_n_steps=50)" in finding.action) == named
    # Hooks that were not timed, as with a profiler of the user's own, exclude nothing.
    untimed = finding_of(cpu_pauses, pausing("other", **loop(None, ("CSVLogger",))))
    assert "CSVLogger" not in untimed.title


def test_stacks_name_the_user_s_function_and_otherwise_operators_the_place() -> None:
    named = finding_of(cpu_pauses, pausing(function="train.py(20): training_step", with_stack=1))
    assert named.title.endswith("in forward, in training_step (train.py:20)")
    assert "with_stack" not in named.action
    finding = finding_of(cpu_pauses, pausing("optimizer"))
    assert "callbacks: most of the time is after aten::mm and before aten::mm." in finding.action
    assert finding.action.endswith("record with PerfCallback(with_stack=True).")


@pytest.mark.parametrize(("threads", "least"), [(1, 1.6), (2, 1.6), (4, 1.2)])
def test_few_threads_on_eight_cores(threads: int, least: float) -> None:
    finding = finding_of(cpu_threads, convolving(on_processor(threads=threads)))
    assert "torch.set_num_threads(8)" in finding.action
    # 9.9 ms of the step are large operators.
    assert saving_of(finding) == pytest.approx((9.9 * (1 - 1 / least), 9.9 * (1 - threads / 8)))


def contended(core_wait: float, other_cpu: float, worker_cpu: float = 0.0, threads: int = 8) -> TraceBuilder:
    """A training on eight cores, some of which others use."""
    use = {"core_wait": core_wait, "other_cpu": other_cpu, "worker_cpu": worker_cpu, "process_cpu": 1.5}
    builder = convolving(on_processor(threads=threads, use=use))
    builder.top_level[LOADER_KEY] = {"kind": "map", "workers": 4}
    return builder


@pytest.mark.parametrize(
    ("other_cpu", "worker_cpu", "threads", "who"),
    [
        (7.8, 0.0, 1, "other programs keep 7.80 cores busy"),
        (0.1, 0.9, 4, "the loader's workers keep 3.60 cores busy"),
        (3.0, 0.5, 3, "other programs keep 3 cores and the loader's workers keep 2 cores busy"),
    ],
)
def test_threads_that_compete_are_told_from_their_rivals(
    other_cpu: float, worker_cpu: float, threads: int, who: str
) -> None:
    finding = finding_of(thread_contention, contended(0.3, other_cpu, worker_cpu))
    assert f"torch.set_num_threads({threads})" in finding.action
    assert who in finding.evidence[0]
    assert saving_of(finding)[1] == pytest.approx(0.9 * 10, rel=0.02)


def test_contention_leads_on_a_busy_machine(tmp_path: Path) -> None:
    builder = contended(0.3, 7.8)
    report = lightning_perf.analyze(builder.write(tmp_path / "trace.json"))
    assert [finding.kind for finding in report.findings] == ["thread-contention"]
    assert report.verdict.next.startswith("Call torch.set_num_threads(1)")


def test_cores_may_be_the_workers() -> None:
    builder = convolving(on_processor(threads=4))
    for step in range(3):
        builder.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", step * 10_000 + 9990, 5)
    finding = finding_of(cpu_threads, builder)
    assert saving_of(finding) == (0, pytest.approx(9.9 / 2, rel=0.01))


BF16 = ["avx512_bf16"]


def short_gaps() -> TraceBuilder:
    """Steps with 900 µs of Python after each operator."""
    builder = on_processor()
    for start in builder.steps(4, 10_000):
        builder.annotation("perf::forward", start, 10_000)
        for number in range(10):
            builder.op("aten::mm", start + 1000 * number, 100)
    return builder


def products(
    count: int, us: float, *, name: str = "aten::mm", strides: list[list[int]] | None = None, **processor: Any
) -> TraceBuilder:
    """Steps of 1 ms with tiny products at even distances."""
    builder = on_processor(**processor)
    for start in builder.steps(3, 1000):
        for number in range(count):
            layout: dict[str, Any] = {} if strides is None else {"Input Strides": strides}
            builder.op(name, start + 1000 / count * number, us, types=["float"] * 2, dims=[[8, 8]] * 2, **layout)
    return builder


def foreign() -> TraceBuilder:
    """Pauses in a recording without the marks of `PerfCallback`."""
    builder = pausing()
    for event in builder.events:
        event["name"] = event["name"].replace("perf::", "mine::")
    return builder


def on_gpu(builder: TraceBuilder) -> TraceBuilder:
    return builder.launch("gemm", call_us=10, call_duration_us=5, start_us=20, duration_us=9000)


@pytest.mark.parametrize(
    ("rule", "recorded", "fires"),
    [
        (cpu_bf16, convolving(on_processor(bf16=[])), False),
        (cpu_bf16, convolving(on_processor(bf16=None)), False),
        (cpu_bf16, convolving(on_processor(bf16=["something_new"])), False),
        (cpu_bf16, convolving(on_processor(bf16=BF16), dtype="c10::BFloat16"), False),
        (cpu_bf16, convolving(on_processor(bf16=BF16, trains=False)), False),
        (cpu_bf16, convolving(on_processor(bf16=BF16), groups=16), False),  # they may get slower
        (cpu_bf16, lacking(convolving(on_processor(bf16=BF16)), "Input type"), False),
        (cpu_bf16, products(10, 99, bf16=BF16), False),  # a call saves a third of 99 µs at least, and costs up to 80
        (cpu_bf16, products(2, 400, bf16=BF16), True),
        (cpu_bf16, products(2, 400, strides=[[], [8, 1]], bf16=BF16), False),  # a sparse operand: autocast fails
        (cpu_bf16, products(2, 400, name="aten::mkldnn_rnn_layer", bf16=BF16), False),  # it may get slower
        (cpu_bf16, linear_layer(4096 * 4096), False),  # 16.8 million elements at up to 3 ns
        (cpu_bf16, attending(511), False),
        (cpu_channels_last, convolving(TraceBuilder()), True),  # whatever wrote the recording
        (cpu_channels_last, convolving(on_processor(), layout="last"), False),
        (cpu_channels_last, lacking(convolving(on_processor()), "Input Strides"), False),
        (cpu_channels_last, convolving(TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)), False),
        (cpu_channels_last, on_gpu(convolving(on_processor())), False),
        (cpu_channels_last, deep_layers(), False),
        (cpu_overhead, calling(57, 100), True),
        (cpu_overhead, calling(63, 100), False),  # below 40 % of the step
        (cpu_overhead, calling(15, 20), False),  # operators that compute
        (cpu_overhead, calling(5, 20, builder=on_processor(trains=False)), False),
        (cpu_overhead, on_gpu(calling(5, 20)), False),
        (cpu_overhead, calling(5, 20, builder=TraceBuilder()), False),
        (cpu_overhead, idling(9_600, fetches=False), False),
        (cpu_overhead, idling(600, fetches=True), False),
        (cpu_page_faults, recording(page_faults=None), False),
        (cpu_page_faults, recording(page_faults=0.0), False),
        (cpu_page_faults, recording(page_faults=100.0), False),  # 0.25 ms of 10 at most
        (cpu_page_faults, recording(page_fault_ns=None), False),
        (cpu_page_faults, recording(allocator="jemalloc"), False),
        (cpu_page_faults, recording(allocator=None), False),
        (cpu_page_faults, recording(trains=False), False),
        (cpu_page_faults, convolving(TraceBuilder()), False),
        (cpu_pauses, pausing(pause_us=4_900), False),
        (cpu_pauses, pausing(pause_us=5_100), True),
        (cpu_pauses, pausing(pauses_us=(0, 0, 90, 20_000, 25_000)), False),
        (cpu_pauses, pausing(pauses_us=(0, 20_000, 22_000, 24_000, 20_000), load=30.0), False),
        (cpu_pauses, pausing(trains=False), False),
        (cpu_pauses, pausing("backward").rank(0, 2, backend="gloo"), False),  # it may wait for the other rank
        (cpu_pauses, pausing("forward").rank(0, 2, backend="gloo"), True),
        (cpu_pauses, foreign(), False),
        (cpu_pauses, short_gaps(), False),
        (thread_contention, contended(0.05, 7.8), False),
        (thread_contention, contended(0.3, 0.1), False),
        (thread_contention, contended(0.3, 7.8, threads=1), False),
        (thread_contention, convolving(on_processor(threads=8)), False),
        (cpu_threads, contended(0.3, 7.0, threads=1), False),
        (cpu_threads, contended(0.0, 7.0, threads=1), False),
        (cpu_threads, contended(0.0, 0.0, threads=1), True),
        (cpu_threads, convolving(on_processor(threads=5)), False),
        (cpu_threads, convolving(on_processor(threads=16)), False),
        (cpu_threads, convolving(on_processor(threads=1, load=5.5)), True),
        (cpu_threads, convolving(on_processor(threads=1, load=5.7)), False),
        (cpu_threads, convolving(on_processor(threads=1)).rank(0, 8, backend="gloo"), False),
        (cpu_threads, products(20, 45, threads=1), False),  # too small to divide
        (cpu_threads, convolving(on_processor(threads=1, trains=False)), False),
        (cpu_threads, convolving(TraceBuilder()), False),
    ],
)
def test_a_rule_fires_from_its_threshold_on(rule: Rule, recorded: TraceBuilder, fires: bool) -> None:
    assert (rule(analysis(recorded)) is not None) == fires
