"""log C_n and A_n against 50-digit golden values, closed forms, and the identities that tie them
together.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.metrics import von_mises_fisher
from likeness.eval.metrics.von_mises_fisher import log_normalizer, mean_resultant, relative

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "logC_bessel_ratio__mpmath.npz")
DIMS = sorted(set(GOLDEN["n"].tolist()))
kappas = st.floats(0, 1e4)
dims = st.integers(1, 2048)


@pytest.mark.parametrize("dim", DIMS)
def test_golden(dim):
    mine = GOLDEN["n"] == dim
    kappa, log_c, resultant = (GOLDEN[key][mine] for key in ("kappa", "log_C", "A"))
    assert np.abs(log_normalizer(kappa, dim) - log_c).max() < 3e-8
    np.testing.assert_allclose(mean_resultant(kappa, dim), resultant, rtol=2e-9, atol=0)
    if dim >= 128:
        assert np.abs(log_normalizer(kappa, dim) - log_c).max() < 3e-11
    if dim == 3:
        np.testing.assert_allclose(log_normalizer(kappa, 3), log_c, rtol=1e-13, atol=1e-13)
        # the series, where the closed form is not taken
        by_form = von_mises_fisher.log_normalizer_ratio(kappa, 3)
        assert np.abs(relative(kappa, 3)[0] - by_form).max() < 3e-8


def test_closed_forms():
    kappa = np.linspace(0, 40, 81)
    # two points: C_1 = 1 / (2 cosh kappa)
    np.testing.assert_allclose(log_normalizer(kappa, 1), -np.log(2 * np.cosh(kappa)), atol=3e-8)
    np.testing.assert_allclose(mean_resultant(kappa, 1), np.tanh(kappa), atol=1e-12)
    expected = 1 / np.tanh(kappa[1:]) - 1 / kappa[1:]
    np.testing.assert_allclose(mean_resultant(kappa[1:], 3), expected, rtol=1e-11)
    np.testing.assert_allclose(von_mises_fisher.log_normalizer_at_zero(2), -np.log(2 * np.pi))


@given(kappas, dims)
def test_uniform_is_the_limit_and_the_resultant_stays_inside(kappa, dim):
    log_c, q = relative(kappa, dim)
    assert log_c <= 0
    assert 0 < q <= 1 / dim * (1 + 1e-12)
    assert mean_resultant(kappa, dim) <= 1
    assert log_c >= -kappa  # C(0)/C(kappa) is a mean of exp(kappa cos) <= exp(kappa)
