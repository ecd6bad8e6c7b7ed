import io

import pytest

from lightning_perf.cli import main
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.results.conclusions import recommend
from lightning_perf.inference.results.page import draw_tradeoff
from lightning_perf.inference.results.tradeoff import Tradeoff
from tests.inference.support import row, tradeoff
from tests.support.schemas import load_document

HERE = "tests.inference.support"
MEASURE = ("infer", f"{HERE}:Tiny", "--shape", "1,8,8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([f"{HERE}:Tiny"], "no validation data: add --data PKG:NAME, or --shape"),
        ([f"{HERE}:Tiny", "--shape", "1,8,8", "--data", f"{HERE}:Tiny"], "does not go with --data"),
        ([f"{HERE}:Tiny", "--shape", "1,8,8", "--variants", "abacus"], "abacus"),
        ([f"{HERE}:Tiny", "--shape", "3,8,8"], "does not take inputs of shape"),
        ([f"{HERE}:Tiny", "--shape", "1,8,8", "--max-accuracy-drop", "0.01"], "no validation data"),
        ([f"{HERE}:Tiny", "--data", f"{HERE}:Nothing"], "has no Nothing"),
        (["no.ckpt", "--shape", "1,8,8"], "no such checkpoint"),
    ],
)
def test_bad_input_is_a_message_and_code_2(arguments, said, capsys):
    assert main(["infer", *arguments]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("lightning-perf: ")
    assert said in streams.err
    assert "Traceback" not in streams.err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--shape", "1,x", "--shape"),
        ("--batch-sizes", "0", "--batch-sizes"),
        ("--max-latency-ms", "0", "--max-latency-ms"),
        ("--max-accuracy-drop", "1", "--max-accuracy-drop"),
        ("--plot", "plot.bogus", "plots are written as .png, .svg or .pdf"),
    ],
)
def test_wrong_usage_is_said_before_the_measurement(option, value, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["infer", f"{HERE}:Tiny", option, value])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "usage: lightning-perf infer" in error
    assert said in error


ROWS = [row("eager", 10), row("onnxruntime-int8", 2, 89, 300), row("openvino", reason="openvino is [red]missing[/red]",
        cold=None, reload=None, latencies=(), accuracy=None)]  # fmt: skip


def advised(latency):
    document = tradeoff(ROWS)
    advice = recommend(ROWS, document.cells[0], max_latency_ms=latency, max_accuracy_drop_points=None)
    return tradeoff(ROWS, recommendation=advice)


@pytest.mark.parametrize(("latency", "code"), [(5, 0), (1, 1)])
def test_the_limits_decide_the_exit_code(latency, code, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("lightning_perf.inference.run.measure_variants", lambda *_, **__: advised(latency))
    files = tmp_path / "deep" / "a.md", tmp_path / "deep" / "a.png"
    assert main([*MEASURE, "--json", "--markdown", str(files[0]), "--plot", str(files[1])]) == code
    printed = capsys.readouterr().out
    assert Tradeoff.from_json(printed) == advised(latency)
    assert load_document("infer", printed)
    assert files[0].read_text().startswith("**Deploy** ")
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_a_file_that_cannot_be_written_leaves_the_others(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("lightning_perf.inference.run.measure_variants", lambda *_, **__: advised(5))
    (tmp_path / "file").touch()
    bad, plot = tmp_path / "file" / "a", tmp_path / "a.png"
    assert main([*MEASURE, "--markdown", f"{bad}.md", "--html", f"{bad}.html", "--plot", str(plot)]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("Deploy ")
    assert f"{bad}.md: cannot be written" in said.err
    assert f"{bad}.html: cannot be written" in said.err
    assert plot.exists()


def console_text(document, width=100):
    file = io.StringIO()
    document.print(file=file, width=width)
    return file.getvalue()


def test_console_and_markdown_show_the_same():
    document = advised(5)
    text, markdown = console_text(document), document.to_markdown()
    assert text.startswith("Deploy   onnxruntime-int8\n")
    for part in ("onnxruntime-int8", "2.00 ms", "89.0 %", "0.500×", "90/100"):
        assert part in text
        assert part in markdown
    assert "openvino: openvino is [red]missing[/red]" in text
    assert r"openvino is \[red\]missing" in markdown
    assert "a note [red]" in text
    assert "| eager | 10.0 ms | 1.00× | 90.0 % | 0 pt | 1000 B | size |" in markdown


def test_without_limits_and_accuracy():
    document = tradeoff([row("eager", accuracy=None)])
    assert console_text(document).startswith("Model    Tiny, inputs 1×8×8")
    assert "–" in document.to_markdown()
    assert draw_tradeoff(document).axes[0].get_ylabel() == "accuracy was not measured"
    assert Tradeoff.from_json(document.to_json()) == document


def test_the_plot_names_its_conditions_and_all_measured_variants():
    axes = draw_tradeoff(advised(5)).axes[0]
    assert axes.get_title(loc="left").startswith("Tiny: batch 1, 1 thread, inputs 1×8×8 float32, A CPU\n")
    assert {text.get_text() for text in axes.texts} == {"eager", "onnxruntime-int8"}
    assert axes.get_xscale() == "log"


def test_plots_that_cannot_be_are_told(tmp_path):
    with pytest.raises(InferenceError, match="no variant was measured"):
        draw_tradeoff(tradeoff([row("eager", latencies=())]))
    with pytest.raises(InferenceError, match=r"Give a \.png, \.svg or \.pdf file"):
        tradeoff([row("eager")]).save_plot(tmp_path / "plot.bogus")
