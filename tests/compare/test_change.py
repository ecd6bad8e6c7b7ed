import pytest

from lightning_perf.compare.change import factor_text, signed_percent


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.94, "−6.0 %"),
        (1.06383, "+6.4 %"),
        (2.0, "+100 %"),
        (9.99, "+899 %"),
        (0.101, "−89.9 %"),
        (10.0, "×10.0"),
        (0.1, "×0.10"),
        (99.96, "×100"),
        (2183.1, "×2183"),
        (0.00126, "×0.0013"),
        (1e6, "×1000000"),
        (1.1e6, "over ×10⁶"),
        (1e-7, "under ×10⁻⁶"),
        (None, "–"),
    ],
)
def test_ratios_as_signed_changes_and_from_tenfold_on_as_factors(ratio, text):
    assert signed_percent(ratio) == text


@pytest.mark.parametrize(
    "factor", [1.234e-6, 0.0042, 0.0999, 0.1001, 0.5, 1.0, 9.9996, 10.0, 99.94, 99.96, 12345.6, 1e6]
)
def test_a_factor_reads_back_as_itself(factor):
    assert float(factor_text(factor)) == pytest.approx(factor, rel=0.05)
