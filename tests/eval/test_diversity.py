"""Feature and cluster diversity against loops and closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from likeness.eval.diversity import cluster_diversity, feature_diversity, spectral_decay


@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(2, 6))
def test_spectrum_against_scipy(seed, n, dim):
    """rho_spectrum of Revisiting-DML by its own formula, from the eigenvalues of the second
    moments.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, dim)).astype(np.float32) * np.exp(
        rng.standard_normal((n, 1))
    ).astype(np.float32)
    unit = x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True)
    small = unit @ unit.T if n < dim else unit.T @ unit
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(small)[::-1], 0))
    if values[-1] > 1e-4:
        assert spectral_decay(x) == pytest.approx(
            entropy(np.ones(values.size) / values.size, values / values.sum()), abs=1e-6
        )
        assert feature_diversity(x) == pytest.approx(
            np.exp(np.mean(np.log(values))) / values.mean(), abs=1e-6
        )
    order = rng.permutation(n)
    assert feature_diversity(x[order]) == pytest.approx(feature_diversity(x), abs=1e-9)


@given(st.integers(0, 10**6))
def test_cluster_diversity_against_loops(seed):
    rng = np.random.default_rng(seed)
    x, labels = rng.integers(-2, 3, size=(20, 3)), rng.integers(4, size=20)
    labels[:3] = 0
    variances = []
    for value in set(labels.tolist()):
        members = [x[i].astype(float) for i in range(20) if labels[i] == value]
        if len(members) < 3:
            continue
        distances = []
        for i in range(len(members)):
            for j in range(i):
                norms = np.linalg.norm(members[i]) * np.linalg.norm(members[j])
                distances.append(1 - (members[i] @ members[j] / norms if norms else 0))
        variances.append(np.mean((np.array(distances) - np.mean(distances)) ** 2))
    order = rng.permutation(20)
    assert cluster_diversity(x, labels) == pytest.approx(np.mean(variances), abs=1e-12)
    assert cluster_diversity(
        x[order], [f"class {label}" for label in labels[order]]
    ) == pytest.approx(np.mean(variances), abs=1e-12)


def test_constant_embeddings_have_no_cluster_diversity():
    assert cluster_diversity(np.ones((4, 3)), ["a"] * 4) == pytest.approx(0, abs=1e-15)
