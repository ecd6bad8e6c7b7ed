import cloudpickle
import pytest
import torch

from lightning_perf import PerfTuner, TuneError
from lightning_perf.tune import campaign
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.model import TF32
from lightning_perf.tune.messages import Window
from lightning_perf.tune.settings import TuneSettings
from lightning_perf.tune.training import Training, as_training
from lightning_perf.tune.tuner import TorchFlags
from tests.tune.conversation import converse, order
from tests.tune.trainings import TRAINER, Data, Flagged, Tiny


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


def test_a_name_goes_as_it_is_and_what_cannot_be_copied_is_told(given):
    PerfTuner().tune("package.module:name")
    assert given[0][0] == "package.module:name"
    with pytest.raises(TuneError, match="leave them out"):
        PerfTuner().tune("package.module:name", Data())
    module = Tiny()
    module.lock = (value for value in ())
    with pytest.raises(TuneError, match=r"cannot be copied .*Give a function that makes them"):
        PerfTuner().tune(module, Data())


@pytest.mark.parametrize(
    ("setting", "said"),
    [
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


@pytest.mark.filterwarnings("ignore")
def test_flags_of_the_newer_kind_are_read_and_set():
    before = TorchFlags.current()
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()  # what the older kind does with them
        wanted = TorchFlags.current()
        before.set()
        wanted.set()
        assert TorchFlags.current() == wanted
        assert "is on already" in TF32().missing(Training(Tiny()), Machine("cuda", (8, 0), 2, "A100"))
    finally:
        before.set()
    assert TorchFlags.current() == before


@pytest.mark.filterwarnings("ignore")
def test_flags_of_the_tuners_process_are_set(tmp_path):
    before = TorchFlags.current()
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        prepared = order(Training(Flagged(), Data(), TRAINER), tmp_path)
        before.set()
        assert TorchFlags.current() == before
        assert isinstance(converse(prepared, 1)[1], Window)
    finally:
        before.set()


def test_the_forms_of_a_training():
    given = Training("module")
    assert as_training(given) is given
    assert as_training("module") == Training("module")
    assert as_training(("module", "data")) == Training("module", "data")
    settings = {"devices": 1}
    training = as_training(("module", None, settings))
    assert training == Training("module", None, {"devices": 1})
    assert training.trainer is not settings
    for made in ((), ("module", "data", "cpu"), ("a", "b", {}, "d")):
        with pytest.raises(TypeError, match="a training is a module, or a tuple"):
            as_training(made)
