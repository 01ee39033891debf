"""Groups of embeddings: clusters, swapped labels and near pairs, diversity."""

from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.metrics import clustering
from likeness.eval.metrics.clustering import agreement
from likeness.eval.metrics.diversity import cluster_diversity, feature_diversity, spectral_decay
from likeness.eval.metrics.similarity import matrix


def cluster(rows: np.ndarray, **options: Any) -> np.ndarray:
    """The number of the cluster of each row."""
    ids = tuple(map(str, range(len(rows))))
    return clustering.cluster(Embeddings(ids, rows), **options).numbers


def blobs(seed: int = 0, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(6), [9, 8, 7, 6, 5, 1])
    return 4 * np.eye(16)[labels] + 4 * noise * rng.normal(size=(labels.size, 16)), labels


@pytest.mark.parametrize("noise", [0.05, 0.4])
def test_average_linkage_is_that_of_scikit_learn(noise):
    rows, _ = blobs(noise=noise)
    average = partial(AgglomerativeClustering, metric="cosine", linkage="average")
    for threshold in (0.2, 0.5, 0.8):
        peer = average(None, distance_threshold=1 - threshold).fit_predict(rows.astype(np.float32))
        assert adjusted_rand_score(peer, cluster(rows, threshold=threshold)) == 1
    for count in (1, 6, len(rows)):
        found = cluster(rows, num_clusters=count)
        assert sorted(set(found.tolist())) == list(range(1, count + 1))
        assert adjusted_rand_score(average(count).fit_predict(rows), found) == 1


def test_clusters_are_numbered_by_size_whatever_the_order():
    rows, labels = blobs()
    found = cluster(rows, threshold=0.5)
    assert found.tolist() == (labels + 1).tolist()
    order = np.random.default_rng(1).permutation(len(rows))
    assert cluster(rows[order], threshold=0.5).tolist() == found[order].tolist()
    assert cluster(7 * rows, threshold=0.5).tolist() == found.tolist()  # cosine knows no lengths


def test_a_score_at_the_threshold_joins_and_equal_rows_are_cut_as_asked():
    rows = np.array([[1, 0], [1, 1], [0, 1]], dtype=np.float32)
    score = float(matrix(rows[:1], rows[1:2])[0, 0])
    assert cluster(rows[:2], threshold=score).tolist() == [1, 1]
    assert cluster(rows[:2], threshold=np.nextafter(score, 2)).tolist() == [1, 2]
    assert len(set(cluster(np.ones((5, 2)), num_clusters=3).tolist())) == 3
    assert cluster(rows, threshold=5.0).tolist() == [1, 2, 3]
    assert cluster(rows, threshold=-5.0).tolist() == [1, 1, 1]


def test_hdbscan_finds_the_groups_and_leaves_out_the_rest():
    rows, labels = blobs(noise=0.02)
    found = cluster(rows, method="hdbscan")
    assert found.tolist() == [*(labels[:-1] + 1).tolist(), 0]


@pytest.mark.parametrize(
    ("rows", "options", "word"),
    [
        (np.ones((1, 2)), {"threshold": 0.5}, "give 2 to 10,000"),
        (np.ones((3, 2)), {}, "agglomerative needs"),
        (np.ones((3, 2)), {"threshold": 0.5, "num_clusters": 2}, "agglomerative needs"),
        (np.ones((3, 2)), {"num_clusters": 4}, "3 items"),
        (np.ones((3, 2)), {"num_clusters": 0}, "num_clusters"),
        (np.ones((3, 2)), {"method": "kmeans", "num_clusters": 2}, "hdbscan"),
        (np.ones((3, 2)), {"method": "hdbscan", "threshold": 0.5}, "hdbscan"),
    ],
)
def test_what_cannot_be_grouped_is_refused(rows, options, word):
    with pytest.raises(ValueError, match=word):
        cluster(rows, **options)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_agreement_with_labels_is_that_of_counting(items):
    """By the definitions, item by item; an item of cluster 0 is alone."""
    labels = [f"s{label}" for label, _ in items]
    mine = [(number, place if number == 0 else 0) for place, (_, number) in enumerate(items)]
    both = list(zip(mine, labels, strict=True))
    p = np.mean([both.count((group, label)) / mine.count(group) for group, label in both])
    r = np.mean([both.count((group, label)) / labels.count(label) for group, label in both])
    purity = sum(max(both.count((group, label)) for label in labels) for group in set(mine))
    found = agreement(labels, np.array([number for _, number in items]))
    assert 0 <= found.pop("nmi") <= 1 + 1e-12
    expected = {"purity": purity / len(items), "bcubed_precision": p, "bcubed_recall": r}
    assert found == pytest.approx(expected | {"bcubed_f1": 2 * p * r / (p + r)})


@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(2, 6))
def test_spectrum_against_scipy(seed, n, dim):
    """rho_spectrum of Revisiting-DML by its own formula, from the eigenvalues of the second
    moments.
    """
    rng = np.random.default_rng(seed)
    x = np.float32(rng.standard_normal((n, dim)) * np.exp(rng.standard_normal((n, 1))))
    unit = x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True)
    small = unit @ unit.T if n < dim else unit.T @ unit
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(small)[::-1], 0))
    if values[-1] > 1e-4:
        decay = entropy(np.ones(values.size) / values.size, values / values.sum())
        assert spectral_decay(x) == pytest.approx(decay, abs=1e-6)
        geometric = np.exp(np.mean(np.log(values)))
        assert feature_diversity(x) == pytest.approx(geometric / values.mean(), abs=1e-6)
    order = rng.permutation(n)
    assert feature_diversity(x[order]) == pytest.approx(feature_diversity(x), abs=1e-9)


@given(st.integers(0, 10**6))
def test_cluster_diversity_against_loops(seed):
    rng = np.random.default_rng(seed)
    x, labels = rng.integers(-2, 3, size=(20, 3)), rng.integers(4, size=20)
    labels[:3] = 0
    variances = []
    for value in set(labels.tolist()):
        distances = []
        for a, b in combinations(x[labels == value].astype(float), 2):
            norms = np.linalg.norm(a) * np.linalg.norm(b)
            distances.append(1 - (a @ b / norms if norms else 0))
        if len(distances) > 1:  # of three or more
            variances.append(np.var(distances))
    order = rng.permutation(20)
    for rows, names in ((x, labels), (x[order], [f"class {label}" for label in labels[order]])):
        assert cluster_diversity(rows, names) == pytest.approx(np.mean(variances), abs=1e-12)
