"""Which change between two runs follows which advice."""

from typing import Any

import pytest

from lightning_perf.estimates.followed import ADVICE, find_followed
from lightning_perf.findings.registry import RULE_IDS

RUN: dict[str, Any] = {
    "train.seed": 1,
    "train.precision": "32-true",
    "train.batch_size": 32,
    "train.optimizer": "AdamW(betas=(0.9, 0.999), foreach=None, fused=None, lr=0.001)",
    "train.accumulate": 1,
    "model.class": "Net",
    "model.compiled": False,
    "data.num_workers": 0,
    "data.pin_memory": False,
    "data.val_num_workers": 0,
    "device.threads": 1,
    "flags.tf32_matmul": "ieee",
    "flags.tf32_cudnn": "tf32",
    "flags.cudnn_benchmark": False,
    "code.revision": "a",
}


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"train.precision": "bf16-mixed"}, "cpu-bf16"),
        ({"train.precision": "16-mixed", "train.seed": 2, "code.revision": "b"}, "half-precision"),
        ({"flags.tf32_matmul": "tf32"}, "tf32-off"),
        ({"model.channels_last": True}, "cpu-channels-last"),
        ({"train.optimizer": "AdamW(betas=(0.9, 0.999), foreach=False, fused=True, lr=0.001)"}, "unfused-optimizer"),
        ({"device.threads": 2, "env.OMP_NUM_THREADS": "2"}, "cpu-threads"),
        ({"data.num_workers": 4, "data.persistent_workers": True, "data.val_num_workers": 4}, "input-bound"),
        ({"data.pin_memory": True}, "pageable-copies"),
        ({"model.compiled": True}, "launch-bound"),
        ({"flags.cudnn_benchmark": True}, "cudnn-benchmark"),
        ({"env.MALLOC_TRIM_THRESHOLD_": "17179869184", "env.MALLOC_MMAP_MAX_": "0"}, "cpu-page-faults"),
        ({"train.batch_size": 64}, "cpu-overhead"),
    ],
)
def test_a_change_follows_its_advice(changed: dict[str, Any], rule: str) -> None:
    followed = find_followed(RUN, RUN | changed)
    assert followed is not None
    assert rule in followed.advice.rules
    assert followed.time_factor == (0.5 if "train.batch_size" in changed else 1)
    assert find_followed(RUN | changed, RUN) is None, "the way back follows no advice"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"train.seed": 2},
        {"train.precision": "64-true"},
        {"train.precision": "bf16-mixed", "device.threads": 2},
        {"train.precision": "bf16-mixed", "train.accumulate": 2},
        {"train.precision": "bf16-mixed", "host.name": "another"},
        {"train.optimizer": "AdamW(betas=(0.9, 0.999), foreach=None, fused=True, lr=0.002)"},
        {"train.optimizer": "SGD(foreach=None, fused=True, lr=0.001)"},
        {"device.threads": "unknown"},
    ],
)
def test_no_change_or_several_follow_none(changed: dict[str, Any]) -> None:
    assert find_followed(RUN, RUN | changed) is None


def test_every_rule_of_the_table_exists() -> None:
    known = RULE_IDS
    assert {rule for advice in ADVICE for rule in advice.rules} <= known
