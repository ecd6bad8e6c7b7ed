import cloudpickle
import pytest

from lightning_perf import PerfTuner, TuneError
from lightning_perf.tune import campaign
from lightning_perf.tune.settings import TuneSettings
from tests.tune.trainings import Data, Tiny


@pytest.fixture
def given(monkeypatch):
    calls = []
    monkeypatch.setattr(campaign, "run_campaign", lambda *call: calls.append(call) or "result")
    return calls


def test_a_module_goes_as_a_copy(given, capsys):
    class Local(Tiny):
        pass

    module = Local()
    assert PerfTuner(minutes=3, levers=["precision"], seed=4).tune(module, Data(), {"devices": 1}) == "result"
    source, settings, on_progress = given[0]
    flags, training = cloudpickle.loads(source)
    assert type(training.module).__name__ == "Local"
    assert training.module is not module
    assert training.trainer == {"devices": 1}
    assert settings == TuneSettings(minutes=3, levers=("precision",), seed=4)
    assert flags.threads > 0
    on_progress("halfway")
    assert capsys.readouterr().out == "halfway\n"


def test_a_name_goes_as_it_is(given):
    PerfTuner().tune("package.module:name")
    assert given[0][0] == "package.module:name"
    with pytest.raises(TuneError, match="leave them out"):
        PerfTuner().tune("package.module:name", Data())


def test_what_cannot_be_copied_is_told(given):
    module = Tiny()
    module.lock = (value for value in ())
    with pytest.raises(TuneError, match=r"cannot be copied .*Give a function that makes them"):
        PerfTuner().tune(module, Data())


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"minutes": 0}, "positive"),
        ({"minutes": float("inf")}, "positive"),
        ({"window_s": float("nan")}, "positive"),
        ({"rounds": 5}, "from 6"),
        ({"rounds": 51}, "to 50"),
        ({"seed": -1}, "seed"),
    ],
)
def test_settings_of_no_use(setting, said):
    with pytest.raises(TuneError, match=said):
        PerfTuner(**setting)
