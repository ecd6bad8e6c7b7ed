"""Check predictions against traces that others recorded on GPUs, before and after following the advice of a finding.

The first trace of each pair is analysed, and a finding must name the change. Its predicted saving is compared with the
change of the step time in the second trace. The traces are in the corpus (``docs/corpus.md``). Only the analysis runs,
so every machine writes the same table.

Run as ``python -m benchmarks.savings.pairs /path/to/corpus``. It prints the table and writes
``benchmarks/results/pairs.md``.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import lightning_perf
from benchmarks.options import make_parser, markdown_table, write_page
from lightning_perf import Finding, PerfReport

RESULTS = Path(__file__).parents[1] / "results" / "pairs.md"
METHOD = 1
"""Version of the method: figures of different versions are not comparable."""


@dataclass(frozen=True)
class Pair:
    """Two recordings of one program.

    Attributes:
        name: What runs.
        changed: The change between the two traces.
        kinds: The findings that advise this change.
        before: File below ``traces/``.
        after: File below ``traces/``.
        remark: Other differences between the traces.
    """

    name: str
    changed: str
    kinds: tuple[str, ...]
    before: str
    after: str
    remark: str = ""


_CAPTURE = "a CUDA graph is captured in the recording after, for 0.43 s"

PAIRS = (
    Pair(
        "ResNet-50 training",
        "num_workers=0 → 4",
        ("input-bound",),
        "kineto/resnet50_num_workers_0/worker0.1623143089861.769c3eb.pt.trace.json.gz",
        "kineto/resnet50_num_workers_4/worker0.1623212756351.234cf25.pt.trace.json.gz",
    ),
    Pair(
        "ResNet-50 training, recorded again",
        "num_workers=0 → 4",
        ("input-bound",),
        "pairs/resnet50_num_workers_0/worker0.1623143566756.383a066.pt.trace.json.gz",
        "pairs/resnet50_num_workers_4/worker0.1623213129365.3e633b5.pt.trace.json.gz",
        "two of the six steps after stand apart, by 80 ms in which nothing runs and by 43 ms in which a copy waits",
    ),
    Pair(
        "Segment Anything, masks of a picture",
        "bf16; image encoder compiled",
        ("half-precision", "launch-bound"),
        "pairs/segment_anything/asdf_False.410efe7.json.gz",
        "pairs/segment_anything/asdf_True.143a949.json.gz",
        _CAPTURE,
    ),
    Pair(
        "Segment Anything, other machine",
        "bf16; image encoder compiled",
        ("half-precision", "launch-bound"),
        "pairs/segment_anything/asdf_False.a73da0d.json.gz",
        "pairs/segment_anything/asdf_True.4488eef.json.gz",
        _CAPTURE,
    ),
    Pair(
        "Segment Anything, other machine",
        "bf16; prompt encoder and mask decoder compiled",
        ("half-precision", "launch-bound"),
        "pairs/segment_anything/asdf_False.a73da0d.json.gz",
        "pairs/segment_anything/asdf_True.10b61b2.json.gz",
    ),
    Pair(
        "Segment Anything, in fewer operators",
        "bf16; prompt encoder and mask decoder compiled",
        ("half-precision",),
        "pairs/segment_anything/asdf_False.9ab058c.json.gz",
        "pairs/segment_anything/asdf_True.3b766a9.json.gz",
        "compiling also saved time, which no finding advises",
    ),
)


@dataclass(frozen=True)
class Outcome:
    """A prediction and its result.

    Attributes:
        places: The place in the report of each finding that the pair is about; 0 of one that was not named.
        low_ms: Least predicted saving; of several findings, the largest of them.
        high_ms: Most predicted saving; of several findings, their sum.
        before_ms: Median step before.
        after_ms: Median step after.
        mean_gain_ms: Saving in the mean step.
    """

    places: tuple[int, ...]
    low_ms: float
    high_ms: float
    before_ms: float
    after_ms: float
    mean_gain_ms: float

    @property
    def gain_ms(self) -> float:
        """Saving in the median step."""
        return self.before_ms - self.after_ms

    @property
    def named(self) -> bool:
        """Whether every finding was."""
        return all(self.places)

    @property
    def inside(self) -> bool:
        """Whether the prediction holds the gain."""
        return self.named and self.low_ms <= self.gain_ms <= self.high_ms


def outcome(before: PerfReport, after: PerfReport, kinds: tuple[str, ...]) -> Outcome:
    """Compare the prediction in one report with the step time in another."""
    places = tuple(_place(before.findings, kind) for kind in kinds)
    found = [before.findings[place - 1] for place in places if place]
    first, second = (_steps_ms(report) for report in (before, after))
    return Outcome(
        places=places,
        low_ms=max((finding.saving_low_ms or 0.0 for finding in found), default=0.0),
        high_ms=sum(finding.saving_high_ms or 0.0 for finding in found),
        before_ms=statistics.median(first),
        after_ms=statistics.median(second),
        mean_gain_ms=statistics.fmean(first) - statistics.fmean(second),
    )


def _place(findings: tuple[Finding, ...], kind: str) -> int:
    return next((place for place, finding in enumerate(findings, start=1) if finding.kind == kind), 0)


def _steps_ms(report: PerfReport) -> list[float]:
    return [step.wall_ns / 1e6 for step in report.ranks[0].breakdown.steps if step.complete]


def row(pair: Pair, traces: Path) -> tuple[str, ...]:
    """Analyse a pair, and put it into a line of the table."""
    before, after = (lightning_perf.analyze(traces / name) for name in (pair.before, pair.after))
    found = outcome(before, after, pair.kinds)
    named = ", ".join(
        f"`{kind}` {f'number {place}' if place else '**not named**'}"
        for kind, place in zip(pair.kinds, found.places, strict=True)
    )
    device = before.ranks[0].metadata.devices[0].name
    mean = f" (mean {found.mean_gain_ms:.1f})" if len(_steps_ms(before)) > 1 else ""
    figures = f"{found.before_ms:.1f} → {found.after_ms:.1f}", f"{found.low_ms:.1f} – {found.high_ms:.1f}"
    inside = "yes" if found.inside else "**no**"
    return f"{pair.name}; {device}", pair.changed, named, *figures, f"{found.gain_ms:.1f}{mean}", inside, pair.remark


def main() -> None:
    """Analyse, print and write."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("corpus", type=Path, help="the folder that holds traces/")
    options = parser.parse_args()
    names = dict.fromkeys(name for pair in PAIRS for name in (pair.before, pair.after))
    if missing := [name for name in names if not (options.corpus / "traces" / name).is_file()]:
        parser.error(f"{options.corpus / 'traces'} lacks {', '.join(missing)}: docs/corpus.md says where to get them")
    heads = ("recording", "changed", "named", "step, ms", "predicted saving, ms", "gain, ms", "inside", "remark")
    write_page(
        options.results,
        f"# Predictions on the recordings of others\n\nWritten by `python -m benchmarks.savings.pairs`, method "
        f"{METHOD}: pairs of recordings, before and after what a finding advises "
        "([docs/corpus.md](../../docs/corpus.md) says whose). "
        "Times are of the median step, or of the whole recording where it marks none. Where the advice of two findings "
        "was followed at once, they should save at least the larger of what each promises at least, and at most the "
        "sum of what they promise at most.\n\n"
        f"{markdown_table(heads, (row(pair, options.corpus / 'traces') for pair in PAIRS))}\n",
    )


if __name__ == "__main__":
    main()
