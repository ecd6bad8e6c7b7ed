import time

from lightning_perf.compare.engines.block import Device
from lightning_perf.compare.engines.local import LocalEngine


def test_a_device_that_is_done_does_not_keep_the_engine_busy(tmp_path, monkeypatch):
    engine = LocalEngine([Device("a", ""), Device("b", "")])

    def one_is_slow(folder, block, device, stop):
        time.sleep(0.0 if block == 1 else 1.0)

    monkeypatch.setattr("lightning_perf.compare.engines.local.run_block", one_is_slow)
    ticks = []
    engine.run(tmp_path, [1, 2], lambda: ticks.append(1))
    assert len(ticks) < 10
