"""Large traces for benchmarks: a real one repeated, with later times and new correlation numbers each time."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

_NUMBERS = re.compile(r'("(?:ts|correlation|External id|id)": |ProfilerStep#)(\d+)(\.\d+)?')


def replicate(source: Path, target: Path, size_bytes: int) -> int:
    """Write a trace of about a size by repeating a real one; a finished file of that name is kept.

    Args:
        source: A real trace, ``.json`` or ``.json.gz``, with its events between the first ``[`` and last ``]``.
        target: Where to write; gzipped as well when its name ends in ``.gz``.
        size_bytes: Size of the JSON text; the last repetition is whole, so the file is a little larger.

    Returns:
        How often the source was repeated.
    """
    data = source.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    end = text.rindex("}", begin, text.rindex("]")) + 1
    head, body, tail = text[:begin], text[begin:end], text[end:]
    repetitions = max(1, -(-size_bytes // len(body.encode())))
    if target.exists():
        return repetitions
    parts = _NUMBERS.split(body)
    texts, kinds, wholes, fractions = parts[0::4], parts[1::4], parts[2::4], [f or "" for f in parts[3::4]]
    times = [int(w) for k, w in zip(kinds, wholes, strict=True) if k == '"ts": ']
    span = max(times) - min(times) + 1000
    step: dict[str, int] = {}
    for kind, whole in zip(kinds, wholes, strict=True):
        step[kind] = max(step.get(kind, 1), int(whole) + 1)
    step['"ts": '] = span
    # Flow events and launches share their numbers; keep them shared.
    step['"id": '] = step['"correlation": '] = max(step.get('"id": ', 1), step.get('"correlation": ', 1))
    shifts = [step[kind] for kind in kinds]
    numbers = [int(w) for w in wholes]
    unfinished = target.with_name(target.name + ".part")
    with gzip.open(unfinished, "wt", compresslevel=4) if target.name.endswith(".gz") else unfinished.open("w") as out:
        out.write(head)
        for repetition in range(repetitions):
            out.write(texts[0] if repetition == 0 else "," + texts[0])
            out.write(
                "".join(
                    f"{kind}{number + repetition * shift}{fraction}{text}"
                    for kind, number, shift, fraction, text in zip(
                        kinds, numbers, shifts, fractions, texts[1:], strict=True
                    )
                )
            )
        out.write(tail)
    unfinished.rename(target)
    return repetitions
