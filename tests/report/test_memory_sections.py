"""The memory of a fit on the console, in Markdown, in a comparison and on the page."""

from pathlib import Path

from lightning_perf import PerfReport, analyze
from lightning_perf.report.compared import Compared
from lightning_perf.run_files.fit.out_of_memory import OutOfMemory, write_out_of_memory
from lightning_perf.trace.tensors import TENSORS_KEY
from tests.report.support import rendered
from tests.support.trace_builder import TraceBuilder

GIB = 2**30


def recording(folder: Path, activations: int) -> PerfReport:
    """A device with 4 GiB of parameters and some activations, in GiB, for a batch of 8."""
    lists = {"parameters": [[0, 1, 4 * GIB]]}
    builder = TraceBuilder(
        **{
            TENSORS_KEY: {"start": lists, "end": lists, "available_bytes": {"0": 38 * GIB}},
            "lightning_perf.loader": {"kind": "map", "batch_size": 8},
        }
    )
    builder.gpu("GPU", totalGlobalMem=40 * GIB).step(1, 0, 100).python("nn.Module: Net_0", 5, 20)
    builder.op("aten::linear", 10, 10)
    size = activations * GIB
    builder.memory(12, size, address=2, allocated=4 * GIB + size, reserved=5 * GIB + size)
    builder.op("AddmmBackward0", 40, 20, thread=2000, forward_thread=1, sequence=1)
    builder.memory(50, -size, address=2, thread=2000, allocated=4 * GIB, reserved=5 * GIB + size)
    folder.mkdir(exist_ok=True)
    builder.write(folder / "rank0.pt.trace.json")
    return analyze(folder)


def test_the_peak_on_the_console(tmp_path: Path) -> None:
    report = recording(tmp_path, 8)
    text = rendered(report)
    figures = "Peak in tensors 12.0 GiB (step 1) · Peak reserved 13.0 GiB · Device memory 40.0 GiB · Headroom 27.0 GiB"
    assert f"Memory, device 0 {figures}" in " ".join(text.split())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in ("parameters 4.00 GiB 30.8 %", "activations 8.00 GiB 61.5 %", "fragmentation 1.00 GiB 7.7 %"):
        assert any(each.startswith(line) for each in lines)
    assert "aten::linear in Net_0 activations forward 1 8.00 GiB" in lines
    assert "(before the recording) parameters 1 4.00 GiB" in lines
    sentences = " ".join(lines)
    # Twice the batch: 4 fixed and 16 growing, widened by 5 %.
    assert "A batch of 16 would need 19.0 GiB to 21.0 GiB for tensors (recorded: 8)." in sentences
    # Of 38 GiB tensors get 12/13. (35.08 / 1.05 - 4) and (35.08 / 0.95 - 4) samples of 1 GiB.
    assert "The largest batch that fits has 29 to 32 samples: there is room of 35.1 GiB for tensors." in sentences
    assert "activations" in report.to_markdown()
    section = rendered(report, 80).partition("\nMemory, device 0\n")[2].partition("\nOperators")[0]
    assert "held by" in section
    assert all(len(line) <= 80 for line in section.splitlines())


def test_the_peak_in_a_comparison(tmp_path: Path) -> None:
    before, after = recording(tmp_path / "before", 8), recording(tmp_path / "after", 2)
    compared = before.diff(after)
    (memory,) = compared.memory
    assert (memory.device, memory.before_bytes, memory.after_bytes) == (0, 13 * GIB, 7 * GIB)
    assert [(part.category, part.after_bytes - part.before_bytes) for part in memory.parts] == [
        ("activations", -6 * GIB),
        ("parameters", 0),
        ("fragmentation", 0),
    ]
    lines = [" ".join(line.split()) for line in rendered(compared).splitlines()]
    assert "Memory at the peak, device 0" in lines
    assert "activations 8.00 GiB 2.00 GiB −6.00 GiB" in lines
    assert "all 13.0 GiB 7.00 GiB −6.00 GiB" in lines
    assert "Memory at the peak, device 0" in compared.to_markdown()
    assert Compared.from_json(compared.to_json()) == compared


def out_of_memory_report(folder: Path) -> PerfReport:
    recording(folder, 8)
    failure = OutOfMemory(
        rank=0, step=12, phase="forward", module="net.3", module_class="Linear", device="cuda:0", asked_bytes=GIB,
        message="CUDA out of memory.", parameters_bytes=4 * GIB, free_bytes=2**20, total_bytes=40 * GIB, batch_size=8,
        fixes=("Halve batch_size to 4.", "Or another."),
    )  # fmt: skip
    write_out_of_memory(folder, failure)
    report = analyze(folder)
    assert report.out_of_memory == (failure,)
    return report


def test_missing_memory_on_the_console(tmp_path: Path) -> None:
    text = " ".join(rendered(out_of_memory_report(tmp_path)).split())
    sentence = (
        "Rank 0 ran out of memory on cuda:0 in step 12: in the forward of net.3 (Linear), while allocating 1.00 GiB."
    )
    assert text.startswith(f"Error {sentence} Fix: Halve batch_size to 4. Where")
    assert text.count(sentence) == 2  # there and in its section
    assert "parameters 4.00 GiB, free 1.00 MiB, total 40.0 GiB" in text
    assert "Fix Halve batch_size to 4." in text


def test_a_damaged_file_becomes_a_note(tmp_path: Path) -> None:
    recording(tmp_path, 8)
    (tmp_path / "out_of_memory.rank0.jsonl").write_text("{}\n")
    (tmp_path / "memory.rank0.jsonl").write_text("[]\n")
    notes = analyze(tmp_path).notes
    assert any(note.startswith("The report on missing memory is left out") for note in notes)
    assert any(note.startswith("The memory over time is left out") for note in notes)
