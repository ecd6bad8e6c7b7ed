import inspect
from collections.abc import Collection
from dataclasses import fields
from typing import Any

import pytest

from lightning_perf import PerfCallback, PerfLoop
from lightning_perf.callbacks.recording.recording_plan import Recording, checked_ranks
from lightning_perf.loop.transformers_callback import PerfTrainerCallback


@pytest.mark.parametrize(
    ("ranks", "error"), [([-1], ValueError), ([True], TypeError), (["0"], TypeError), ("01", TypeError), (3, TypeError)]
)
def test_bad_ranks_are_refused(ranks: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="ranks"):
        checked_ranks(ranks)
    with pytest.raises(error, match="ranks"):
        PerfCallback(ranks=ranks)


@pytest.mark.parametrize("ranks", [[0, 2], {0}, range(3), ()])
def test_good_ranks_are_not(ranks: Collection[int]) -> None:
    assert checked_ranks(ranks) == frozenset(ranks)


@pytest.mark.parametrize("measure", [PerfCallback, PerfLoop])
def test_the_callback_and_the_loop_refuse_the_same_values(measure: type) -> None:
    with pytest.raises(ValueError, match=r"report='long' is unknown: give one of 'full', 'short', 'none'"):
        measure(report="long")
    with pytest.raises(ValueError, match=r"fingerprint='none' is unknown: give one of 'full', 'light'"):
        measure(fingerprint="none")
    with pytest.raises(ValueError, match="max_overhead=2"):
        measure(max_overhead=2)
    with pytest.raises(ValueError, match="hang_after=0 must be a number of seconds above 0"):
        measure(hang_after=0)
    with pytest.raises(TypeError, match="warmup"):
        measure(warmup=1.5)


@pytest.mark.parametrize("measure", [PerfCallback, PerfLoop, PerfTrainerCallback])
def test_every_signature_has_the_defaults_of_the_recording(measure: type) -> None:
    options = {item.name: item.default for item in fields(Recording)}
    parameters = inspect.signature(measure).parameters
    shared = {name: parameter.default for name, parameter in parameters.items() if name in options}
    assert shared == {name: options[name] for name in shared}
    if measure is not PerfTrainerCallback:
        assert set(shared) == set(options)


def test_the_options_of_a_constructor_are_taken_from_its_arguments() -> None:
    recording = Recording.given({"self": object(), "active": 7, "ranks": [1], "report": "none"})
    assert recording == Recording(active=7, ranks=[1])
    assert (recording.schedule.active, recording.schedule.skip_first, recording.ranks) == (7, 10, frozenset({1}))
    assert recording.open_fields == {"skip_first", "wait", "warmup"}
