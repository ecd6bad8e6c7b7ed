import os
import time

from lightning_perf.compare.engines.block import Device
from lightning_perf.compare.engines.local import LocalEngine
from lightning_perf.compare.study.results import study_arms
from lightning_perf.compare.study.run import run_study
from tests.compare.support import fake_arm, fake_study


def test_two_devices_run_blocks_side_by_side(tmp_path):
    engine = LocalEngine([Device(f"test-{os.getpid()}-{n}", str(n)) for n in range(2)])
    arms = (fake_arm("a", "--sleep=0.3"), fake_arm("b", "--sleep=0.3"))
    run_study(fake_study(arms=arms, blocks=2, treatment=()), tmp_path, engine, lambda line: None)
    visible = {
        block: {
            r.facts["device.visible"] for runs in study_arms(tmp_path).values() for r in runs if r.place.block == block
        }
        for block in (1, 2)
    }
    assert sorted(map(tuple, visible.values())) == [("0",), ("1",)]


def test_a_device_that_is_done_does_not_keep_the_engine_busy(tmp_path, monkeypatch):
    engine = LocalEngine([Device("a", ""), Device("b", "")])

    def one_is_slow(folder, block, device, stop):
        time.sleep(0.0 if block == 1 else 1.0)

    monkeypatch.setattr("lightning_perf.compare.engines.local.run_block", one_is_slow)
    ticks = []
    engine.run(tmp_path, [1, 2], lambda: ticks.append(1))
    assert len(ticks) < 10
