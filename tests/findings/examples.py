"""The examples on the pages of the rules: console text of a finding in a published trace or in a test's recording.

``python -m tests.findings.examples --write`` puts them on the pages again. Those of published traces need the folder
in ``LIGHTNING_PERF_CORPUS``.
"""

import argparse
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lightning_perf
from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.report import findings_blocks
from tests.analysis.host.test_waits import training as stopping
from tests.analysis.ranks.test_whole_fit import late_since_400, uneven_lengths
from tests.findings import accounts, compilations
from tests.findings.host_recordings import convolving, on_processor
from tests.findings.recordings import FP32_GEMM, holding, training
from tests.findings.test_conditions import checking
from tests.findings.test_cpu import calling, contended, loop, pausing
from tests.findings.test_cpu import recording as faulting
from tests.findings.test_host import waiting
from tests.findings.test_kernels import casting, converting
from tests.findings.test_loading import copying
from tests.findings.test_memory import reserving
from tests.findings.test_model import attending, padded, repeating
from tests.findings.test_steps import growing, periodic_run
from tests.findings.test_throttled import throttling
from tests.support.shown import console_text
from tests.support.trace_builder import TraceBuilder

PAGES = Path(lightning_perf.__file__).parent / "findings" / "pages"
WIDTH = 76
"""Columns of an example: on a terminal of 80 the page has room for it."""

_PLACE = re.compile(r"(<!-- example -->\n).*?(<!-- end of example -->)", re.DOTALL)


@dataclass(frozen=True)
class Example:
    """A recording that has a finding.

    Attributes:
        source: Where the recording is from, as the page says it.
        recordings: The traces of its ranks, made by a test.
        corpus: The trace or folder below ``traces`` of the corpus, if it is a published one.
        run: Makes a run with its step log in a folder, and its report.
    """

    source: str
    recordings: Callable[[], Sequence[TraceBuilder]] = tuple
    corpus: str = ""
    run: Callable[[Path], PerfReport] | None = None

    def analyze(self, corpus: Path | None) -> PerfReport:
        """Return the report of the recording."""
        if self.corpus:
            assert corpus is not None, "name the folder of the corpus in LIGHTNING_PERF_CORPUS"
            return lightning_perf.analyze(corpus / "traces" / self.corpus)
        with tempfile.TemporaryDirectory() as folder:
            if self.run is not None:
                return self.run(Path(folder))
            for rank, builder in enumerate(self.recordings()):
                builder.write(Path(folder) / f"rank{rank}.pt.trace.json")
            return lightning_perf.analyze(folder)


def published(name: str) -> str:
    """Say that the example is from a trace that others published."""
    return f"From a published recording, [`{name}`](../../../docs/corpus.md):"


MADE = "From a recording with known times that a [test](../../../tests/findings/examples.py) makes:"

EXAMPLES = {
    "activations": Example(MADE, lambda: [holding(parameters=2, gradients=2, optimizer_state=4, activations=24)]),
    "allocator": Example(published("ddp_resnet18_no_pool"), corpus="tracelens/mi300/ddp_resnet18_no_pool"),
    "attention-math": Example(MADE, lambda: [attending()]),
    "autocast-tax": Example(MADE, lambda: [casting(20)]),
    "channels-last": Example(MADE, lambda: [converting()]),
    "cold-start": Example(published("mi250_minitoy_train"), corpus="hta/amd_trace"),
    "cpu-bf16": Example(MADE, lambda: [convolving(on_processor(bf16=["avx512_bf16"]))]),
    "cpu-channels-last": Example(MADE, lambda: [convolving(on_processor())]),
    "cpu-overhead": Example(MADE, lambda: [calling(5, 20)]),
    "cpu-page-faults": Example(MADE, lambda: [faulting()]),
    "cpu-pauses": Example(MADE, lambda: [pausing("other", **loop({"ImageLogger.on_train_batch_end": 29_000}))]),
    "cpu-threads": Example(MADE, lambda: [convolving(on_processor(threads=1))]),
    "throttled": Example(MADE, run=throttling),
    "thread-contention": Example(MADE, lambda: [contended(0.3, 7.8)]),
    "cudnn-benchmark": Example(MADE, lambda: [waiting(400, 200, "aten::conv2d", "cudaEventSynchronize")]),
    "data-parallel": Example(MADE, lambda: [training().annotation("DataParallel.forward", 30, 100)]),
    "debug-settings": Example(MADE, lambda: [checking(variables=["NCCL_DEBUG=INFO"])]),
    "exposed-communication": Example(published("nccl_parser_config"), corpus="hta/nccl_parser_config"),
    "fragmentation": Example(MADE, lambda: [holding(parameters=4, gradients=4, optimizer_state=8, fragmentation=16)]),
    "half-precision": Example(published("ns_resolution_trace"), corpus="hta/ns_resolution_trace"),
    "leak": Example(MADE, run=accounts.growing),
    "memory-growth": Example(MADE, run=accounts.caching),
    "compile-cost": Example(MADE, run=compilations.costing),
    "cudagraph-skips": Example(MADE, run=compilations.skipping),
    "graph-breaks": Example(MADE, run=compilations.breaking),
    "recompiles": Example(MADE, run=compilations.recompiling),
    "worker-memory": Example(MADE, run=accounts.copying),
    "growing-steps": Example(MADE, run=growing),
    "host-work": Example(
        published("gaunernst_bert-small-uncased"),
        corpus="tracelens/h100/gaunernst_bert-small-uncased__1016001.737b43a.json.gz",
    ),
    "imbalance": Example(MADE, run=uneven_lengths),
    "input-bound": Example(
        published("resnet50_num_workers_0"),
        corpus="kineto/resnet50_num_workers_0/worker0.1623143089861.769c3eb.pt.trace.json.gz",
    ),
    "launch-bound": Example(published("eager_trace"), corpus="tracelens/b200"),
    "memory-full": Example(MADE, lambda: [reserving(0.96)]),
    "memory-spare": Example(
        published("gaunernst_bert-small-uncased"),
        corpus="tracelens/h100/gaunernst_bert-small-uncased__1016001.737b43a.json.gz",
    ),
    "optimizer-state": Example(MADE, lambda: [holding(parameters=8, gradients=8, optimizer_state=16)]),
    "padding": Example(MADE, lambda: [padded(0.4)]),
    "pageable-copies": Example(MADE, lambda: [copying(100, pinned=False)]),
    "periodic-steps": Example(MADE, run=periodic_run),
    "queued-stalls": Example(
        published("negative_queue_length_values"), corpus="hta/negative_queue_length_values_check"
    ),
    "straggler": Example(MADE, run=late_since_400),
    "recompute": Example(MADE, lambda: [repeating()]),
    "small-kernels": Example(
        published("negative_queue_length_values"), corpus="hta/negative_queue_length_values_check"
    ),
    "stop-flags": Example(MADE, lambda: [stopping()]),
    "sync-points": Example(MADE, lambda: [waiting(400, 200)]),
    "tensor-cores": Example(MADE, lambda: [training(kernel="ampere_hgemm_128x64_nn", dtype="c10::Half", dims=1023)]),
    "tf32-off": Example(MADE, lambda: [training(kernel=FP32_GEMM, dtype="float")]),
    "unfused-optimizer": Example(published("step_based_trace"), corpus="hta/with_gpu_user_annotation"),
    **{rule: Example(MADE, run=partial(accounts.faulty, rule)) for rule in accounts.FAULTS},
}


def example_text(rule: str, report: PerfReport) -> str:
    """Return the console text of a rule's finding in a report."""
    finding = next(finding for finding in (*report.findings, *report.fit_findings) if finding.kind == rule)
    *blocks, _ = findings_blocks([finding], None if report.lead is None else report.ranks[report.lead])
    return console_text(blocks, WIDTH).strip("\n")


def with_example(page: str, rule: str, report: PerfReport) -> str:
    """Return the text of a page with its example, from the report of it, put in place."""
    block = f"\n{EXAMPLES[rule].source}\n\n```text\n{example_text(rule, report)}\n```\n\n"
    return _PLACE.sub(lambda match: f"{match[1]}{block}{match[2]}", page)


def main() -> int:
    """Write the examples into the pages, or say which of them are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", nargs="*", metavar="RULE", help="only these rules")
    parser.add_argument("--write", action="store_true", help="change the pages")
    options = parser.parse_args()
    corpus = os.environ.get("LIGHTNING_PERF_CORPUS")
    old = 0
    for rule in options.rules or EXAMPLES:
        page = PAGES / f"{rule}.md"
        before = page.read_text(encoding="utf-8")
        after = with_example(before, rule, EXAMPLES[rule].analyze(Path(corpus) if corpus else None))
        if after != before:
            old += 1
            print(f"{'written' if options.write else 'out of date'}: {page.name}")
            if options.write:
                page.write_text(after, encoding="utf-8")
    return 0 if options.write or not old else 1


if __name__ == "__main__":
    raise SystemExit(main())
