"""The parts of a comparison's page and of a refusal's, and its pictures."""

from __future__ import annotations

import importlib
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_perf.compare.records.metrics import METRICS, Metric
from lightning_perf.compare.verdicts.blocks import (
    arm_cell,
    arms_table,
    differences_table,
    gate_table,
    metrics_table,
    results_table,
    scatter_table,
    verdict_blocks,
    way_out,
)
from lightning_perf.compare.verdicts.charts import (
    accuracy_boxes,
    block_lines,
    forest,
    predictions,
    run_order,
    time_boxes,
)
from lightning_perf.errors import CompareError
from lightning_perf.run_files.atomic import replace_file
from lightning_perf.show.blocks import Block, Cell, Heading, Line, Table, note, table
from lightning_perf.show.plots import draw_picture, image, short_name
from lightning_perf.units import NOT_AVAILABLE, column_format, counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_perf.compare.verdicts.comparison import Comparison, Run, Unfair


def comparison_parts(comparison: Comparison) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of a comparison's page."""
    return {
        "verdict": verdict_blocks(comparison, paged=True),
        "context": [Line(" · ".join(_context(comparison)), "quiet"), *map(note, comparison.notes)],
        "gates": [replace(gate_table(comparison.gates), definition="gate")],
        "results": [results_table(comparison, paged=True)],
        "forest": forest(comparison),
        "predictions": predictions(comparison),
        "step_times": time_boxes(comparison, "step_time"),
        "train_times": time_boxes(comparison, "train_time"),
        "accuracy": accuracy_boxes(comparison),
        "differences": [differences_table(comparison)],
        "arms": [arms_table(comparison)],
        "metrics": [metrics_table(comparison)],
        "blocks": block_lines(comparison),
        "order": run_order(comparison),
        "scatter": [scatter_table(comparison)],
        "runs": [_runs(comparison)],
    }


def unfair_parts(refusal: Unfair) -> dict[str, Iterable[Block]]:
    """Return the blocks of a refusal's page."""
    rows = ((row.fact, row.arm, ", ".join(row.baseline), ", ".join(row.candidate)) for row in refusal.rows)
    heads = ("fact", "candidate", refusal.baseline, "candidate's value")
    title = "Differences beyond the setting being tested"
    return {
        "refusal": [
            Heading("Refused as unfair", definition="fair-comparison"),
            Line(refusal.message, "bad"),
            Line(way_out(refusal)),
        ],
        "differences": [table(heads, rows, title, "code text text text", definition="fair-comparison")],
        "missing": [Line("The arms were not compared, because the comparison would be unfair.", label="runs")],
    }


def _context(comparison: Comparison) -> Iterator[str]:
    used = {arm.used for arm in comparison.arms}
    if len(used) == 1:
        yield f"{counted(used.pop(), 'run')} per arm"
    else:
        yield f"runs: {', '.join(f'{arm.used} of {arm.name}' for arm in comparison.arms)}"
    yield "in blocks" if comparison.blocked else "not in blocks"
    if comparison.treatment:
        yield f"tested: {', '.join(comparison.treatment)}"
    yield ", ".join(comparison.hardware) or "hardware not recorded"


def _runs(comparison: Comparison) -> Table:
    """Return every run in order of start, including those left out."""
    every = {name: [run.values[name] for run in comparison.runs] for name in METRICS}
    known = {name: values for name, values in every.items() if any(value is not None for value in values)}
    blocks = ("block",) if comparison.blocked else ()
    rows = (
        (
            run.run_id,
            arm_cell(comparison, run.arm),
            *((run.block,) if blocks else ()),
            _counted(run),
            *(_value(METRICS[name], run.values[name], values) for name, values in known.items()),
        )
        for run in comparison.runs
    )
    heads = ("run", "arm", *blocks, "counted", *(METRICS[name].title for name in known))
    kinds = f"code name{' count' if blocks else ''} text" + " figure" * len(known)
    return table(heads, rows, "Runs in order of start", kinds, definition="run-of-a-study")


def _counted(run: Run) -> Cell:
    if run.left_out is not None:
        return Cell(f"no: {run.left_out}", style="warning")
    return Cell("collapsed", style="bad") if run.collapsed else Cell("yes")


def _value(metric: Metric, value: float | None, values: Sequence[float | None]) -> Cell:
    """Return a value of a metric with its unit: that of the largest value."""
    figures = column_format(metric.unit, values)
    return Cell(NOT_AVAILABLE if value is None else f"{figures.value(value)} {figures.unit}".rstrip(), value)


EVENTS_SUFFIX = ".comparison"

PLOTS: Mapping[str, Callable[[Comparison], Iterable[Block]]] = {
    "times": lambda comparison: chain(time_boxes(comparison, "step_time"), time_boxes(comparison, "train_time")),
    "accuracy": accuracy_boxes,
    "pairs": block_lines,
    "ratios": forest,
    "order": run_order,
    "prediction": predictions,
}
"""The plots by their names, which are also those of their files."""


class SavedPlots:
    """The saved plots. ``str()`` returns a line that lists them."""

    def __init__(self, folder: Path, files: tuple[Path, ...], *, in_tensorboard: bool) -> None:
        self.folder, self.files, self.in_tensorboard = folder, files, in_tensorboard

    def __str__(self) -> str:
        names = ", ".join(file.stem for file in self.files if file.suffix == ".png") or "none, there is nothing to draw"
        how = f"tensorboard --logdir {self.folder}" if self.in_tensorboard else "TensorBoard is not installed"
        return f"{names}: {self.folder} ({how})"


def draw_plots(comparison: Comparison) -> dict[str, Figure]:
    """Draw every plot that the comparison has data for."""
    head = _origin(comparison)
    drawn = {name: draw_picture(blocks(comparison), head) for name, blocks in PLOTS.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def save_plots(comparison: Comparison, folder: Path) -> SavedPlots:
    """Draw and save the plots; see `Comparison.save_plots`.

    Plots of an earlier comparison in the folder are replaced, or removed if this comparison lacks them.
    """
    figures = draw_plots(comparison)
    images = {f"{name}.{kind}": image(figure, kind) for name, figure in figures.items() for kind in ("png", "svg")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in images.items():
            replace_file(folder / name, content)
        for name in PLOTS.keys() - figures.keys():
            for suffix in (".png", ".svg"):
                (folder / name).with_suffix(suffix).unlink(missing_ok=True)
        in_tensorboard = _write_events(folder, {name: images[f"{name}.png"] for name in figures})
    except OSError as error:
        raise CompareError(f"{folder}: the plots cannot be written ({error.strerror}). Give another folder.") from error
    return SavedPlots(folder, tuple(folder / name for name in images), in_tensorboard=in_tensorboard)


def _origin(comparison: Comparison) -> str:
    """Return the number of drawn runs per arm, of runs left out by reason, and the hardware."""
    counts = [arm.used for arm in comparison.arms]
    several = ", ".join(f"{arm.used} {short_name(arm.name, 24)}" for arm in comparison.arms)
    text = f"n = {counts[0]} per arm" if len(set(counts)) == 1 else f"n = {several}"
    text += ", in blocks" if comparison.blocked else ", not in blocks"
    left_out = sum((Counter(arm.left_out) for arm in comparison.arms), Counter[str]())
    if left_out:
        text += f" (left out: {', '.join(f'{count} {short_name(reason)}' for reason, count in left_out.items())})"
    return f"{text} · {', '.join(comparison.hardware) or 'hardware not recorded'}"


def _write_events(folder: Path, images: Mapping[str, bytes]) -> bool:
    """Write TensorBoard's event file, and remove that of an earlier comparison."""
    try:
        event = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summary = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        writing = importlib.import_module("tensorboard.summary.writer.event_file_writer")
    except ImportError:
        return False
    earlier = list(folder.glob(f"events.out.tfevents.*{EVENTS_SUFFIX}"))
    values = []
    for name, content in images.items():
        width, height = struct.unpack(">II", content[16:24])  # of the header of a PNG file
        picture = summary.Image(height=height, width=width, colorspace=4, encoded_image_string=content)
        values.append(summary.Value(tag=f"comparison/{name}", image=picture))
    writer = writing.EventFileWriter(str(folder), filename_suffix=EVENTS_SUFFIX)
    try:
        writer.add_event(event.Event(wall_time=time.time(), step=0, summary=summary(value=values)))
    finally:
        writer.close()
    for path in earlier:
        path.unlink(missing_ok=True)
    return True
