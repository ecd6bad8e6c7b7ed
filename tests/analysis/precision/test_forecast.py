"""The judgement of samples: verdicts, advice and predicted savings, against figures computed by hand."""

import msgspec
import pytest
from msgspec.structs import replace

from lightning_perf.analysis.kernels.kernel_table import KernelLauncher, KernelRow, KernelTable
from lightning_perf.analysis.precision.forecast import Forecast, FormatShares, ProductTime, forecast, product_time
from lightning_perf.run_files.numerics.samples import LayerSample, RoundedCounts, TensorSample
from tests.support.known import known

RECIPES = ("fp16", "bf16", "fp8", "fp8-delayed", "mxfp8", "nvfp4")


def sample(layer: str = "fc", *, step: int = 20, db: float = 25.0, size: int = 8192, **worse: float) -> LayerSample:
    """A sample with the same ratio in all products and recipes, except for those in `worse`."""
    ratios: dict[str, float | None] = {recipe: worse.get(recipe.replace("-", "_"), db) for recipe in RECIPES}
    counts = {"e4m3": RoundedCounts(30, 2, 8), "e5m2": RoundedCounts(0, 0, 0)}
    tensor = TensorSample(100, 60, 3.5, counts)
    return LayerSample(
        step, layer, size, size, size, {"rows": size, "inputs": size, "outputs": size}, 1024.0,
        {"weight": tensor, "activation": tensor, "gradient": tensor},
        {"forward": dict.fromkeys(RECIPES, 40.0), "input gradient": ratios, "weight gradient": dict.fromkeys(RECIPES)},
        cost_ns=10 * step, elapsed_ns=1000 * step,
    )  # fmt: skip


def judged(*samples: LayerSample, measured: ProductTime | None = None, precision: str = "bf16-mixed") -> Forecast:
    return known(forecast(samples, precision=precision, measured=measured))


def test_no_samples_are_no_forecast():
    assert forecast([]) is None


def test_the_lowest_ratio_of_all_products_and_samples_decides():
    found = judged(sample(db=25), sample(db=14.9, step=90), sample("other", db=15.0))
    first, other = found.layers
    verdict = first.verdicts["fp8"]
    assert (verdict.snr_db, verdict.product, verdict.safe) == (14.9, "input gradient", False)
    assert other.verdicts["fp8"].safe
    assert found.recipes["fp8"].keep_out == ("fc",)
    assert found.recipes["fp8"].safe == 1
    assert found.samples == 2
    assert found.cost_share == 0.01
    assert found.advice[:2] == (
        "FP8 would be safe in 1 of 2 layers.",
        "Keep out fc: the input gradient has a signal-to-noise ratio of 14.9 dB.",
    )


def test_shares_are_of_the_nonzero_values_of_all_samples():
    found = judged(sample(), sample(step=90))
    assert found.layers[0].tensors["weight"]["e4m3"] == FormatShares(30 / 40, 2 / 40, 8 / 40)


def test_sizes_that_do_not_fit():
    odd = replace(sample("head"), sizes={"rows": 64, "inputs": 48, "outputs": 10})
    found = judged(odd, sample())
    assert odd.layer in found.recipes["fp8"].misaligned
    assert found.layers[0].verdicts["fp8"].misaligned == ("outputs 10",)
    assert found.layers[0].verdicts["mxfp8"].misaligned == ("inputs 48", "outputs 10")
    assert (found.recipes["fp8"].safe, found.recipes["fp8"].usable) == (2, 1)
    assert "Pad head or keep it out: a size is not a multiple of 16." in found.advice


def test_delayed_scaling_that_is_worse():
    found = judged(sample(fp8_delayed=3.0), sample("other"))
    assert "Use current scaling: with delayed scaling only 1 would be safe." in found.advice


def test_saving_of_large_products_by_hand():
    saving = judged(sample()).recipes["fp8"].devices[0]
    # 6 · 8192³ operations: 3.334 ms at 989.4 TFLOP/s. In FP8 half of that at best; at worst two thirds, and casts of
    # 3 · 8192² elements · 6 bytes at 3.35 TB/s, 0.361 ms.
    now_ms = 6 * 8192**3 / 989.4e9
    assert saving.device == "H100 SXM5"
    assert saving.most == pytest.approx(0.5, abs=1e-3)
    assert saving.least == pytest.approx((now_ms / 3 - 3 * 8192**2 * 6 / 3.35e9) / now_ms, abs=1e-3)
    assert saving.step_most is None
    fp4 = judged(sample()).recipes["nvfp4"].devices
    assert [each.device for each in fp4] == ["B200"]
    assert fp4[0].most == pytest.approx(0.75, abs=1e-3)


def test_small_products_are_bound_by_memory():
    saving = judged(sample(size=64)).recipes["fp8"].devices[0]
    # Six bytes per element now, four in FP8, and six more for the casts.
    assert (saving.most, saving.least) == (pytest.approx(1 / 3), pytest.approx(-2 / 3))
    assert "If the casts to FP8 are not fused with other kernels, it saves nothing." in judged(sample(size=64)).advice


def test_unsafe_layers_save_nothing():
    both = judged(sample(), sample("other", db=5.0)).recipes["fp8"].devices[0]
    assert both.most == pytest.approx(0.25, abs=1e-3)
    assert judged(sample(db=5.0)).recipes["fp8"].devices[0].most == 0


def test_the_step_saves_the_share_of_its_products():
    measured = ProductTime("H200 SXM5", "bf16", 0.6)
    found = judged(sample(), measured=measured)
    saving = found.recipes["fp8"].devices[0]
    assert saving.device == "H200 SXM5"
    assert (saving.step_least, saving.step_most) == (0.6 * saving.least, 0.6 * saving.most)
    assert any(line.startswith("On the H200 SXM5, it would save 15 to 30 % of the step") for line in found.advice)
    # A recording in FP32 says nothing about the time in BF16.
    other = judged(sample(), measured=replace(measured, arithmetic="fp32"), precision="32-true")
    assert other.recipes["fp8"].devices[0].step_most is None


def kernel(name: str, total_ns: int, arithmetic: str, launcher: str = "aten::mm") -> KernelRow:
    return KernelRow(
        name, "device_compute", 1, total_ns, total_ns, total_ns, total_ns, 0.1, None, None, None, arithmetic,
        (KernelLauncher(launcher, total_ns),),
    )  # fmt: skip


def test_time_of_products_in_a_recording():
    rows = (
        kernel("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", 600, "bf16"),
        kernel("volta_sgemm_128x64_nt", 200, "fp32"),
        kernel("flash_fwd_kernel", 900, "bf16", "aten::_scaled_dot_product_flash_attention"),
        kernel("vectorized_elementwise_kernel", 500, "bf16", "aten::add"),
    )
    table = KernelTable(rows, 2, 2200)
    found = product_time(table, "NVIDIA H200", 1000.0)
    assert found == ProductTime("H200 SXM5", "bf16", 0.4)
    assert product_time(table, "Unknown", 1000.0) is None
    assert product_time(None, "NVIDIA H200", 1000.0) is None


def test_round_trip_through_json():
    found = judged(sample(), sample("other", db=3.0), measured=ProductTime("H100 SXM5", "bf16", 0.5))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Forecast) == found
