import pytest

from lightning_perf.tune.training import Training, as_training


def test_the_forms_of_a_training():
    given = Training("module")
    assert as_training(given) is given
    assert as_training("module") == Training("module")
    assert as_training(("module", "data")) == Training("module", "data")
    settings = {"devices": 1}
    training = as_training(("module", None, settings))
    assert training == Training("module", None, {"devices": 1})
    assert training.trainer is not settings


@pytest.mark.parametrize("made", [(), ("module", "data", "cpu"), ("a", "b", {}, "d")])
def test_what_is_none_is_told(made):
    with pytest.raises(TypeError, match="a training is a module, or a tuple"):
        as_training(made)
