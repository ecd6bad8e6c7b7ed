"""The worker process that analyses one recording after another."""

from __future__ import annotations

from pathlib import Path

from lightning_perf.report.recording import analyze_recording, encode_recording
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.messages import Message

__all__ = ["Analyze", "Analyzed", "main"]


class Analyze(Message, frozen=True):
    """Read the files of one process and analyse them together."""

    paths: tuple[str, ...]
    by_shape: bool


class Analyzed(Message, frozen=True):
    """The result, as `encode_recording` writes it."""

    recording: bytes


def main(channel: Channel) -> None:
    """Analyse recordings until the supervisor asks to stop."""
    while True:
        task = channel.receive(Analyze)
        recording = analyze_recording([Path(path) for path in task.paths], by_shape=task.by_shape)
        channel.send(Analyzed(encode_recording(recording)))
