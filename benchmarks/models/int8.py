"""Compare the outputs of a trained network for several ways to quantize it to int8.

- Ranges of activations: the whole observed range, percentiles of it, minimum entropy; otherwise as
  ``onnxruntime-int8``.
- Compiling torchao's program for each batch size, as ``int8-pt2e`` does, or once for any size.

Nothing is timed. Run as ``python -m benchmarks.models.int8 CHECKPOINT [--data FOLDER]``, with a checkpoint of the
recipe. It prints a table and writes it to ``benchmarks/results/int8.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.versions import device_name, versions_text
from lightning_perf.inference.measurement.timing import predict
from lightning_perf.inference.model import Subject
from lightning_perf.inference.runtimes.base import Call
from lightning_perf.inference.runtimes.eager import module_call
from lightning_perf.inference.runtimes.export import calibration_reader, write_onnx
from lightning_perf.inference.runtimes.inductor import missing_inductor_tools
from lightning_perf.inference.runtimes.onnx_runtimes import load_session
from lightning_perf.inference.runtimes.torchao_int8 import PROGRAM_FILE, Int8Pt2e
from lightning_perf.inference.variants.running import relative_difference
from recipes.signlang.inference.held_out import gather_data
from recipes.signlang.training.checkpoint import load_checkpoint

RESULTS = Path(__file__).parents[1] / "results" / "int8.md"
CPU = torch.device("cpu")

RANGES: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("MinMax", "the whole range seen (chosen)", {}),
    ("Percentile", "its 99.99th percentile", {"CalibPercentile": 99.99}),
    ("Percentile", "its 99.9th percentile", {"CalibPercentile": 99.9}),
    ("Entropy", "least entropy", {}),
)
"""Method of ``onnxruntime.quantization.CalibrationMethod``, its description, and its options."""


@dataclass(frozen=True)
class Row:
    """Results of one choice: correct answers, and the largest difference over the original's largest output."""

    choice: str
    right: int
    error: float


COMPILED = (
    ("for each batch size (chosen)", False, True),
    ("once for any batch size", True, True),
    ("once for any batch size, without TorchInductor's own checks", True, False),
)
"""A description, whether the program is compiled for any batch size, and whether shapes in memory are checked."""


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the pictures are (default: as trained)")
    options = parser.parse_args()
    trained = load_checkpoint(options.checkpoint)
    data = gather_data(trained, print, data=options.data)
    torch.set_num_threads(1)
    inputs, labels = data.validation.inputs, data.validation.labels.numpy()
    subject = Subject(trained.classifier, inputs[:64].contiguous(), data.calibration, CPU, 1)
    original = outputs_of(module_call(trained.classifier), inputs.numpy())

    def row(choice: str, call: Call) -> Row:
        outputs = outputs_of(call, inputs.numpy())
        return Row(choice, int((outputs.argmax(1) == labels).sum()), relative_difference(outputs, original))

    failures = []
    rows = [Row("float32", int((original.argmax(1) == labels).sum()), 0.0)]
    with TemporaryDirectory() as scratch:
        for number, (method, choice, more) in enumerate(RANGES):
            path = Path(scratch, f"{number}.onnx")
            quantize(subject, path, method, more)
            rows.append(row(f"ONNX Runtime, {choice}", load_session(path, CPU, 1)))
        if reason := missing_inductor_tools(CPU):
            print(f"torchao left out: {reason}")
        else:
            Int8Pt2e().build(subject, Path(scratch))
            for how, dynamic, checked in COMPILED:
                call = compiled(Path(scratch, PROGRAM_FILE), dynamic=dynamic, checked=checked)
                try:
                    rows.append(row(f"torchao, compiled {how}", call))
                except AssertionError as error:
                    failures.append(f"- torchao, compiled {how}: stops ({str(error).splitlines()[0]})")
    write_page(options.results, report(rows, failures, trained.model, len(labels), len(data.calibration)))


def outputs_of(call: Call, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the outputs for all inputs."""
    with torch.inference_mode():
        return predict(call, inputs, CPU)


def quantize(subject: Subject, path: Path, method: str, more: dict[str, float]) -> None:
    """Write an ONNX file in int8 like ``onnxruntime-int8``, but with other ranges."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, prepared = path.with_suffix(".float.onnx"), path.with_suffix(".prepared.onnx")
    write_onnx(subject, plain)
    quant_pre_process(plain, prepared)
    quantize_static(
        prepared,
        path,
        calibration_reader(subject.calibration),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod[method],
        extra_options=more,
    )


def compiled(program: Path, *, dynamic: bool, checked: bool) -> Call:
    """Return torchao's program, compiled with frozen weights."""
    import torchao.quantization.pt2e  # noqa: F401  (defines the operators of the program)

    torch._dynamo.reset()
    with torch.inference_mode(False), torch.no_grad():
        call = module_call(torch.compile(torch.export.load(program).module(), dynamic=dynamic))

    def frozen(inputs: torch.Tensor) -> torch.Tensor:
        with torch._inductor.config.patch(freezing=True, size_asserts=checked):
            return call(inputs)

    return frozen


def report(rows: list[Row], failures: list[str], model: str, pictures: int, calibration: int) -> str:
    """Return the table with its conditions."""
    cells = [(row.choice, f"{row.right}/{pictures}", f"{100 * row.error:.1f} %") for row in rows]
    lines = [
        "# Choices behind int8",
        "",
        f"Written by `python -m benchmarks.models.int8`: {model} of the recipe, {pictures} held-out pictures,",
        f"calibrated with {calibration} training pictures. {device_name()}; {versions_text()}.",
        "Output error: the largest difference from the original's outputs, over its largest one.",
        "",
        markdown_table(("choice", "right", "output error"), cells, 2),
        *(["", *failures] if failures else []),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
