"""Draw the plots of a comparison and save them as PNG, SVG and images for TensorBoard."""

from __future__ import annotations

import importlib
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.compare.errors import CompareError
from lightning_perf.lazy_imports import import_extra
from lightning_perf.run_files.atomic import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_perf.compare.verdicts.comparison import Comparison

EVENTS_SUFFIX = ".comparison"
PNG_DPI = 150


class SavedPlots:
    """The saved plots. ``str()`` returns a line that lists them."""

    def __init__(self, folder: Path, files: tuple[Path, ...], *, in_tensorboard: bool) -> None:
        self.folder, self.files, self.in_tensorboard = folder, files, in_tensorboard

    def __str__(self) -> str:
        names = ", ".join(file.stem for file in self.files if file.suffix == ".png") or "none, there is nothing to draw"
        how = f"tensorboard --logdir {self.folder}" if self.in_tensorboard else "TensorBoard is not installed"
        return f"{names}: {self.folder} ({how})"


def draw_plots(comparison: Comparison) -> dict[str, Figure]:
    """Draw every plot that the comparison has data for.

    Returns:
        The figures by name: ``times``, ``accuracy``, ``pairs``, ``ratios``, ``order``, ``prediction``. Save them
        inside `lightning_perf.compare.plots.style.drawing`, which applies their settings.
    """
    import_extra("matplotlib", "compare")
    from lightning_perf.compare.plots.intervals import draw_prediction, draw_ratios
    from lightning_perf.compare.plots.runs import draw_accuracy, draw_order, draw_pairs, draw_times
    from lightning_perf.compare.plots.style import drawing

    draws = {
        "times": draw_times,
        "accuracy": draw_accuracy,
        "pairs": draw_pairs,
        "ratios": draw_ratios,
        "order": draw_order,
        "prediction": draw_prediction,
    }
    with drawing():
        drawn = {name: draw(comparison) for name, draw in draws.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def save_plots(comparison: Comparison, folder: Path) -> SavedPlots:
    """Draw and save the plots; see `Comparison.save_plots`.

    Plots of an earlier comparison in the folder are replaced, or removed if this comparison lacks them.
    """
    figures = draw_plots(comparison)
    from lightning_perf.compare.plots.style import drawing

    images: dict[str, bytes] = {}
    with drawing():
        for name, figure in figures.items():
            images[f"{name}.png"] = _image(figure, "png")
            images[f"{name}.svg"] = _image(figure, "svg")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in images.items():
            replace_file(folder / name, content)
        for name in ("times", "accuracy", "pairs", "ratios", "order", "prediction"):
            if name not in figures:
                for suffix in (".png", ".svg"):
                    (folder / name).with_suffix(suffix).unlink(missing_ok=True)
        in_tensorboard = _write_events(folder, {name: images[f"{name}.png"] for name in figures}, figures)
    except OSError as error:
        raise CompareError(f"{folder}: the plots cannot be written ({error.strerror}). Give another folder.") from error
    return SavedPlots(folder, tuple(folder / name for name in images), in_tensorboard=in_tensorboard)


def _image(figure: Figure, kind: str) -> bytes:
    stream = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": "lightning_perf"}
    figure.savefig(stream, format=kind, dpi=PNG_DPI, metadata=metadata)
    return stream.getvalue()


def _write_events(folder: Path, images: Mapping[str, bytes], figures: Mapping[str, Figure]) -> bool:
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
        width, height = (round(PNG_DPI * inches) for inches in figures[name].get_size_inches())
        image = summary.Image(height=height, width=width, colorspace=4, encoded_image_string=content)
        values.append(summary.Value(tag=f"comparison/{name}", image=image))
    writer = writing.EventFileWriter(str(folder), filename_suffix=EVENTS_SUFFIX)
    try:
        writer.add_event(event.Event(wall_time=time.time(), step=0, summary=summary(value=values)))
    finally:
        writer.close()
    for path in earlier:
        path.unlink(missing_ok=True)
    return True
