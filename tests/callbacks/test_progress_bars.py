"""What a terminal shows at the end of a fit: the whole report, whichever progress bar the Trainer has."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import rich

from tests.callbacks.perf_training import quick
from tests.callbacks.training import PACKAGES, loader, make_module, make_trainer, package

CONTROL = re.compile(r"\x1b\[(\?)?(\d*(?:;\d+)*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines that it shows: what was written, with the cursor moved and lines erased."""
        lines, row, column = [""], 0, 0
        for match in CONTROL.finditer(self.getvalue()):
            private, number, command, move, text = match.groups()
            if text is not None:
                lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
                column += len(text)
            elif move == "\r":
                column = 0
            elif move == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif command == "A" and not private:
                row = max(0, row - int(number or 1))
            elif command == "K" and number == "2":
                lines[row] = ""
        return lines


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    yield Terminal()
    rich.reconfigure()  # the bar has set up rich's own console for its stream


def test_the_emulated_terminal_moves_and_erases() -> None:
    stream = Terminal()
    stream.write("one\ntwo\n\x1b[?25l\x1b[1A\x1b[2K\r\x1b[32mTWO\x1b[0m\nthree")
    assert stream.screen() == ["one", "TWO", "three"]


@pytest.mark.parametrize("bar", ["RichProgressBar", "TQDMProgressBar"])
@pytest.mark.parametrize("name", PACKAGES)
def test_no_progress_bar_erases_a_part_of_the_report(
    tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, bar: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdout", terminal)
    callbacks = package(f"{name}.callbacks")
    if bar == "RichProgressBar":
        shown = callbacks.RichProgressBar(console_kwargs={"file": terminal, "force_terminal": True, "width": 200})
    else:
        shown = callbacks.TQDMProgressBar()
    callback = quick(report="full")
    trainer = make_trainer(tmp_path, callback, name, enable_progress_bar=True, callbacks=[shown])
    trainer.fit(make_module(name), loader(6))
    lines = [line.rstrip() for line in terminal.screen()]
    begin = next(place for place, line in enumerate(lines) if line.startswith("Where"))
    report = [line for line in lines[begin:] if line]
    assert any(line.startswith("Timeline: lightning-perf view") for line in report)
    assert "Traces" in report
    assert any(line.startswith("Step times without the profiler") for line in report)
    if bar == "RichProgressBar":
        assert any("Epoch 0" in line for line in lines[:begin]), "the bar is still there, above the report"
        assert not any("Epoch 0" in line for line in report)
