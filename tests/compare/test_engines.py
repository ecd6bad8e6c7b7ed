import os

import pytest

from lightning_perf.compare.engines.ray import RayEngine
from lightning_perf.compare.engines.slurm import SlurmEngine
from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.study import run_study
from lightning_perf.compare.study_records import study_arms
from tests.compare.support import fake_study

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray_engine():
    ray = pytest.importorskip("ray")
    engine = RayEngine(gpus=1, local_gpus=1)
    engine.check()
    yield engine
    ray.shutdown()


def test_a_study_on_rays_fake_gpu(tmp_path, ray_engine):
    states = run_study(fake_study(blocks=1), tmp_path, ray_engine, lambda line: None)
    assert all(state.done for state in states.values())
    runs = [run for runs in study_arms(tmp_path).values() for run in runs]
    assert {run.facts["device.visible"] for run in runs} == {"0"}
    assert {run.notes["threads"] for run in runs} == {os.environ.get("OMP_NUM_THREADS", "not set")}


def test_a_device_that_no_machine_has_is_an_error_and_no_wait(ray_engine):
    with pytest.raises(CompareError, match="has 2 GPUs"):
        RayEngine(gpus=2).check()


def test_a_study_in_submitits_local_jobs(tmp_path):
    pytest.importorskip("submitit")
    states = run_study(fake_study(blocks=1), tmp_path, SlurmEngine(cluster="local"), lambda line: None)
    assert all(state.done for state in states.values())


def test_no_slurm_here_is_said():
    pytest.importorskip("submitit")
    with pytest.raises(CompareError, match="SLURM cannot be used"):
        SlurmEngine().check()
