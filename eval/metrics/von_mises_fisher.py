"""The von Mises-Fisher distribution on the unit sphere of R^n: log normaliser log C_n(kappa) and
mean resultant length A_n(kappa), in float64.

    density(x) = C_n(kappa) exp(kappa mu.x),
        C_n(kappa) = kappa^v / ((2 pi)^(v+1) I_v(kappa)),   A_n(kappa) = I_{v+1}(kappa) /
        I_v(kappa),   v = n/2 - 1

Method: Debye's uniform expansion of I_v (Abramowitz & Stegun 9.7.7) to four terms. It is accurate
for large orders only, so orders v below 15 are raised by m whole steps, and the recurrence I_{w-1}
= I_{w+1} + (2w/kappa) I_w brings the result back down. With s = sqrt(v^2 + kappa^2), u = s - v, i =
1/s, p = (v/s)^2,

    Sigma = 1 + sum_j i^j P_j(p)
        P_j: DEBYE below
    log C(kappa) - log C(0) = v log1p(u/2v) - u + log1p(u/v)/2 - log Sigma(kappa) + log Sigma(0)
    Q = A/kappa = 1/(v+s) - i^2/2 + (d log Sigma/d kappa)/kappa
        then for w = v-1, ..., n/2-1: Q <- 1/(2(w+1) + kappa^2 Q), log C += log(2(w+1) Q)

Nothing cancels, and kappa enters by its square only: kappa = 0 (the uniform distribution) is no
special case. Error for n = 2 ... 2048 and kappa up to 1e4 against 50-digit values: below 3e-8 in
log C, 2e-9 relative in A. toolkit/vmf/distribution.py differentiates the same series: it imports
`expansion` and `orders`.
"""

from math import ceil, lgamma, log, pi
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.types import Floats

# (divisor, coefficients of p^0, p^1, ...) of P_1 ... P_4: Debye's polynomials, U_j(t) / t^j in p =
# t^2.
DEBYE: tuple[tuple[float, tuple[float, ...]], ...] = (
    (24.0, (3.0, -5.0)),
    (1152.0, (81.0, -462.0, 385.0)),
    (414720.0, (30375.0, -369603.0, 765765.0, -425425.0)),
    (39813120.0, (4465125.0, -94121676.0, 349922430.0, -446185740.0, 185910725.0)),
)
MIN_ORDER = 15.0  # orders of the Bessel function below it are raised


def orders(dim: int) -> tuple[float, int]:
    """The order v at which the series is summed, and the number of steps down to n/2 - 1.

    >>> orders(3), orders(512)
    ((15.5, 15), (255.0, 0))
    """
    steps = max(0, ceil(MIN_ORDER - (dim / 2 - 1)))
    return dim / 2 - 1 + steps, steps


def debye_sums(i: Any, p: Any) -> tuple[Any, Any]:
    """Sigma, and the sum that gives its derivative: (d Sigma/d kappa)/kappa = -i^2 times it. i, p:
    numbers, arrays or tensors; only + and * are used.
    """
    sigma: Any = 0.0
    slope: Any = 0.0
    for j in range(len(DEBYE), 0, -1):
        divisor, coefficients = DEBYE[j - 1]
        value: Any = 0.0
        weighted: Any = 0.0
        for m in range(len(coefficients) - 1, -1, -1):
            value = value * p + coefficients[m] / divisor
            weighted = weighted * p + coefficients[m] * ((j + 2 * m) / divisor)
        sigma = (sigma + value) * i
        slope = (slope + weighted) * i
    return 1.0 + sigma, slope


def log_normalizer_at_zero(dim: int) -> float:
    """log C_n(0) = -log of the area of the unit sphere.

    >>> round(log_normalizer_at_zero(3), 6)
    -2.531024
    """
    return lgamma(dim / 2) - log(2) - dim / 2 * log(pi)


def relative(kappa: ArrayLike, dim: int) -> tuple[Floats, Floats]:
    """log C_n(kappa) - log C_n(0) and Q = A_n(kappa)/kappa, both of kappa's shape. kappa: finite
    and >= 0.

    The pair that everything here is made of: d log C/d kappa = -kappa Q, and Q(0) = 1/n.
    """
    square = np.square(np.asarray(kappa, dtype=np.float64))
    log_c, q = expansion(square, *orders(dim), xp=np)
    return np.asarray(log_c), np.asarray(q)


def expansion(square: Any, v: float, steps: int, *, xp: Any, stride: int = 4) -> tuple[Any, Any]:
    """`relative` of kappa^2 from the order v on, so many steps above n/2 - 1.

    Args:
        square: kappa^2, an array or a tensor.
        v: The order at which the series is summed.
        steps: How many steps lead down from it.
        xp: numpy, or torch for a tensor.
        stride: Of how many steps the product of factors is taken before its logarithm. A factor is
            at most 1, and a logarithm is dearer than a product.
    """
    s = xp.sqrt(square + v * v)
    u = square / (s + v)
    i = 1 / s
    sigma, slope = debye_sums(i, (v * i) ** 2)
    at_zero = log(debye_sums(1 / v, 1.0)[0])
    log_c = v * xp.log1p(u / (2 * v)) - u + 0.5 * xp.log1p(u / v) - xp.log(sigma) + at_zero
    q = 1 / (v + s) - i * i * (0.5 + slope / sigma)
    gain: Any = 1.0
    for step in range(steps, 0, -1):
        order = 2 * (v - steps + step)
        q = 1 / (order + square * q)
        gain = gain * (order * q)
        if step % stride == 1:
            log_c, gain = log_c + xp.log(gain), 1.0
    return log_c, q


def closed_form(kappa: Any, *, xp: Any) -> Any:
    """log C_3(kappa) - log C_3(0) = -log(sinh(kappa) / kappa), of an array or a tensor."""
    safe = xp.where(kappa > 0, kappa, 1.0)
    return xp.where(kappa > 0, xp.log(-2 * safe / xp.expm1(-2 * safe)) - safe, 0.0)


def log_normalizer_ratio(kappa: ArrayLike, dim: int) -> Floats:
    """log C_n(kappa) - log C_n(0): what differences of normalisers need, without the large
    constant. n = 3: closed form.

    >>> log_normalizer_ratio([0.0, 1.0], 3).round(6).tolist()
    [0.0, -0.161439]
    """
    if dim != 3:
        return relative(kappa, dim)[0]
    made: Floats = closed_form(np.asarray(kappa, dtype=np.float64), xp=np)
    return made


def log_normalizer(kappa: ArrayLike, dim: int) -> Floats:
    """log C_n(kappa), the log density normaliser. kappa: any shape, >= 0.

    >>> bool(abs(log_normalizer(0.0, 3) + np.log(4 * np.pi)) < 1e-12)
    True
    """
    return log_normalizer_ratio(kappa, dim) + log_normalizer_at_zero(dim)


def mean_resultant(kappa: ArrayLike, dim: int) -> Floats:
    """A_n(kappa) = |E[x]|, from 0 (uniform) towards 1 (a point).

    >>> mean_resultant([0.0, 1.0, 1e9], 3).round(6).tolist()
    [0.0, 0.313035, 1.0]
    """
    # rounding may put it 1e-15 above
    return np.minimum(np.asarray(kappa, dtype=np.float64) * relative(kappa, dim)[1], 1.0)
