from __future__ import annotations

import pytest

from lightning_perf.analysis.precision import Fp32Arithmetic, PrecisionSetting
from lightning_perf.analysis.run_precision import RunPrecision, encode_precision, read_precision
from lightning_perf.errors import TraceError


def test_file_of_a_run(tmp_path):
    precision = RunPrecision(PrecisionSetting("32-true", None, False, None, (), Fp32Arithmetic(True, False, True)))
    path = tmp_path / "precision.json"
    path.write_bytes(encode_precision(precision))
    assert read_precision(path) == precision


def test_bad_files_say_what_to_do(tmp_path):
    path = tmp_path / "precision.json"
    with pytest.raises(TraceError, match="cannot be read"):
        read_precision(path)
    for content in (b"{", b'{"setting": 1}', b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=r"is no description of a run's precision.*Remove it"):
            read_precision(path)
