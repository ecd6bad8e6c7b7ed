from pathlib import Path

import pytest

import lightning_perf.findings
from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.levers.loader import BatchSize, Workers
from lightning_perf.tune.levers.model import Compiled, MixedPrecision
from lightning_perf.tune.levers.registry import LEVERS, find_lever, find_levers


def test_names_are_distinct_and_fit_the_table():
    names = [lever.name for lever in LEVERS]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 23


def test_names_and_families_find_levers_in_the_order_of_the_catalogue():
    assert [one.name for one in find_levers(["channels-last", "precision"])] == [
        "bf16-mixed",
        "16-mixed",
        "channels-last",
    ]
    assert find_levers([]) == LEVERS
    assert find_lever("compile").name == "compile"


def test_names_say_what_a_lever_does():
    changes = {lever.name: lever.change for lever in LEVERS}
    assert changes["16-mixed"] == MixedPrecision("16-mixed")
    assert changes["workers-8"] == Workers(8)
    assert changes["workers-4-prefetch-4"] == Workers(4, prefetch=4)
    assert changes["compile-max-autotune"] == Compiled("max-autotune-no-cudagraphs")
    assert changes["batch-size-x4"] == BatchSize(4)


def test_larger_batches_alone_change_the_training():
    assert [lever.name for lever in LEVERS if lever.changes_training] == ["batch-size-x2", "batch-size-x4"]


def test_an_unknown_name_is_told_with_those_there_are():
    with pytest.raises(TuneError, match="unknown lever 'warp-drive'; choose from bf16-mixed"):
        find_levers(["precision", "warp-drive"])


def test_what_levers_mend_are_findings_that_exist():
    folder = Path(lightning_perf.findings.__file__).parent
    written = "".join(path.read_text() for path in folder.rglob("*.py"))
    for lever in LEVERS:
        assert all(f'"{kind}"' in written for kind in lever.addresses), lever.name
