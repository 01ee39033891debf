"""Learning-rate schedules: plain functions of the run's progress, step / steps in 0..1, to the
factor on optim.lr. Warm-up multiplies them (Schedule).
"""

import math


def constant(progress: float) -> float:
    """1 throughout.

    >>> constant(0.7)
    1.0
    """
    return 1.0


def cosine(progress: float, *, start: float = 0.0, stop: float = 1.0, end: float = 0.0) -> float:
    """From 1 to `end` along half a cosine, between the fractions `start` and `stop` of the run.

    >>> round(cosine(0.5, end=0.2), 12)
    0.6
    >>> cosine(0.2, start=0.2, stop=0.6), round(cosine(0.7, start=0.2, stop=0.6, end=0.1), 12)
    (1.0, 0.1)
    """
    share = min(max((progress - start) / (stop - start), 0.0), 1.0)
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * share))


def multistep(progress: float, *, at: tuple[float, ...], factor: float = 0.1) -> float:
    """factor ** (number of the fractions `at` of the run that have passed).

    >>> multistep(0.6, at=(0.5, 0.75))
    0.1
    """
    return factor ** sum(progress >= fraction for fraction in at)


def polynomial(
    progress: float, *, power: float = 2.0, start: float = 0.0, end: float = 0.0
) -> float:
    """From 1 to `end` as (1 - x)^power, x counted from the fraction `start` on: insightface's
    PolyScheduler is power 2 with start = its warm-up, its later PolynomialLRWarmup power 1.

    >>> polynomial(0.5)
    0.25
    >>> polynomial(0.1, start=0.1)
    1.0
    """
    rest = 1.0 if progress <= start else (1 - progress) / (1 - start)
    return end + (1 - end) * float(rest**power)


def exponential(progress: float, *, end: float = 5e-4) -> float:
    """From 1 to `end` in equal ratios, end ** progress: WeSpeaker's ExponentialDecrease, whose .1
    -> 5e-5 is end = 5e-4 (its warm-up multiplies, as here).

    >>> round(exponential(0.5, end=0.01), 12)
    0.1
    """
    return float(end**progress)
