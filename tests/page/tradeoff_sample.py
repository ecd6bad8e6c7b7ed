"""A trade-off table with known figures."""

from lightning_perf.inference.counting.document import Count, LayerCount, Peaks, bound_latency
from lightning_perf.inference.measurement.measure import Accuracy, Effort, Latency
from lightning_perf.inference.results.tradeoff import Cell, ColdStart, Machine, Recommendation, Reload, Row, Tradeoff
from lightning_perf.statistics.values import Estimate

CELLS = ((1, 1), (1, 32))


def row(name: str, p50_ms: float, correct: int, size_bytes: int, reason: str | None = None) -> Row:
    latencies = tuple(
        Latency(
            threads=threads,
            batch=batch,
            calls=200,
            p10_ms=0.9 * p50_ms * batch,
            p50_ms=p50_ms * batch,
            p90_ms=1.2 * p50_ms * batch,
            p99_ms=None,
            cpu_ms=p50_ms,
            device_ms=None,
            throughput=1000 / p50_ms,
            speedup=None if name == "eager" else Estimate(8 / p50_ms, 7 / p50_ms, 9 / p50_ms, 0.95, 10, "Walsh"),
        )
        for threads, batch in CELLS
    )
    drop = 90.0 - correct
    return Row(
        variant=name,
        transforms=(),
        runtime=name,
        summary=f"what {name} does",
        reason=reason,
        parameters=1000,
        size_bytes=None if reason else size_bytes,
        build_s=1.0,
        cold=None if reason else ColdStart(10.0, 2.0, 10**8, None),
        reload=None if reason else Reload(0.0, 1e-3),
        output_error=None if reason else 1e-6,
        accuracy=None if reason else Accuracy(correct, 100, 100, 0.8, 0.95, 0.99, drop, drop - 2, drop + 2),
        latencies=() if reason else latencies,
        provenance={"dtype": "float32"},
    )


def hand_made_tradeoff() -> Tradeoff:
    """Three variants that run and one that does not: int8 is the fastest and loses two points."""
    rows = (
        row("eager", 8.0, 90, 4000),
        row("compiled", 4.0, 90, 4000),
        row("int8", 2.0, 88, 1000),
        row("pruned", 1.0, 0, 0, reason="pruned needs training data"),
    )
    layers = (
        LayerCount("conv", "Conv2d", 1, (1, 8, 6, 6), 1000, 2000, 80, 400, 5.0),
        LayerCount("", "Net", 1, (1, 5), 0, 0, 0, 9000, 0.0, ("aten::sort",)),
    )
    count = Count((1, 1, 8, 8), (1, 5), layers, 1000, 2000, 80, 0, 320, 9400, 700, 2000 / 9400)
    cells = tuple(
        Cell(threads, batch, Estimate(1.0, 0.99, 1.02, 0.95, 10, "Walsh"), 0.02, ("int8", "compiled"), ("int8",))
        for threads, batch in CELLS
    )
    return Tradeoff(
        schema_version=1,
        method_version=1,
        tool_version="0.1.0",
        model="Net",
        input_shape=(1, 8, 8),
        machine=Machine("A CPU", "cpu", "A CPU", 2, "Linux", 0.1, 1.0, {"torch": "2.0"}),
        effort=Effort(),
        validation_inputs=100,
        notes=("A note.",),
        rows=rows,
        cells=cells,
        recommendation=Recommendation(5.0, 1.0, "compiled", "It is within both limits."),
        count=count,
        roofline=bound_latency(count, Peaks("A CPU", "float32", 1, 1e6, 1e6, "an example")),
    )
