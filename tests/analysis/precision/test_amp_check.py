from __future__ import annotations

import pytest

from lightning_perf.analysis.precision.amp_gain import AmpGain, check_prediction


def test_check_of_a_prediction():
    gain = AmpGain("A100 40GB", 5, 100e6, (), 0.0, 20e6, 60e6)
    assert not check_prediction(gain, 90e6).held
    assert not check_prediction(gain, 30e6).held
    with pytest.raises(ValueError, match="was not measured"):
        check_prediction(gain, 0)
