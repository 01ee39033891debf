"""Retrieval metrics against loops over every order of tied items, the golden file, and the values
that three tools gave on the same points.
"""

from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from likeness.eval.errors import LikenessError
from likeness.eval.metrics import ranks as ranks_module
from likeness.eval.metrics import retrieval
from likeness.eval.metrics.ranks import label_codes, rank_blocks
from likeness.eval.metrics.retrieval import f1, nmi, query_metrics, retrieval_metrics

GOLDEN_FILES = Path(__file__).parents[2] / "golden"
GOLDEN = np.load(GOLDEN_FILES / "retrieval_metrics__bruteforce_pml.npz")
KEYS = ["recall@1", "recall@2", "recall@4", "recall@8", "precision@1", "r_precision"]
KEYS += ["map@r", "map@1000", "num_queries", "num_lone"]


def of_list(hits: list[bool], ks: tuple[int, ...], depth: int) -> dict[str, float]:
    """The definitions, literally, of one ranked list."""
    num_relevant = sum(hits)
    values = {f"recall@{k}": float(any(hits[:k])) for k in ks} | {
        "precision@1": float(hits[0]),
        "r_precision": sum(hits[:num_relevant]) / num_relevant,
    }
    for name, end in (("map@r", num_relevant), ("map@1000", depth)):
        places = [i for i in range(min(end, len(hits))) if hits[i]]
        precisions = [sum(hits[: i + 1]) / (i + 1) for i in places]
        values[name] = sum(precisions) / min(num_relevant, end)
    return values


def brute(scores, labels, gallery_labels, *, itself: bool, ks: tuple[int, ...], depth: int = 1000):
    """For each query the mean over all orders of its tied items; None for lone ones. scores: (Q,
    G).
    """
    values = []
    for q in range(len(scores)):
        items = [g for g in range(scores.shape[1]) if not (itself and g == q)]
        if not any(gallery_labels[g] == labels[q] for g in items):
            values.append(None)
            continue
        levels = sorted({scores[q, g] for g in items}, reverse=True)
        tied = [permutations([g for g in items if scores[q, g] == level]) for level in levels]
        orders = [[g for group in order for g in group] for order in product(*tied)]
        hits = [[gallery_labels[g] == labels[q] for g in order] for order in orders]
        lists = [of_list(each, ks, depth) for each in hits]
        values.append({name: np.mean([of[name] for of in lists]) for name in lists[0]})
    return values


@settings(max_examples=80)
@given(st.data())
def test_against_every_order_of_ties(data):
    """Small integer coordinates: float32 inner products are exact, and full of ties."""
    n, dim = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 2))
    points = st.lists(st.integers(-1, 2), min_size=dim, max_size=dim)
    x = np.array(data.draw(st.lists(points, min_size=n, max_size=n)), dtype=np.float32)
    labels = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    ks, depth = (1, 2, 3, 9), data.draw(st.integers(1, 6))
    y, gallery_labels = x, labels
    if data.draw(st.booleans()):
        m = data.draw(st.integers(1, 6))
        y = np.array(data.draw(st.lists(points, min_size=m, max_size=m)), dtype=np.float32)
        gallery_labels = data.draw(st.lists(st.integers(0, 2), min_size=m, max_size=m))
    itself = y is x
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_MAP_DEPTH", depth)
        patch.setattr(ranks_module, "_CELLS", data.draw(st.sampled_from([1, 12, 1000])))
        gallery = {} if itself else {"gallery": y, "gallery_labels": gallery_labels}
        result = query_metrics(x, labels, ks=ks, similarity="dot", **gallery)
    expected = brute(x @ y.T, labels, gallery_labels, itself=itself, ks=ks, depth=depth)
    for q, value in enumerate(expected):
        for name in result.keys() - {"relevant"}:
            if value is None:
                assert np.isnan(result[name][q])
            else:
                assert result[name][q] == pytest.approx(value[name], abs=1e-12), (name, q)


def random_points(n: int, dim: int, num_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=n)
    centres = rng.standard_normal((num_classes, dim))
    return centres[labels] + 1.2 * rng.standard_normal((n, dim)), labels


@pytest.mark.parametrize("similarity", ["cosine", "dot", "simple:0.3"])
def test_against_float64_loops(similarity):
    x, labels = random_points(90, 7, 9, seed=3)
    norms = np.linalg.norm(x, axis=1)
    dot, outer = x @ x.T, np.outer(norms, norms)
    scores = {"cosine": dot / outer, "dot": dot, "simple:0.3": dot - 0.3 * outer}[similarity]
    expected = brute(scores, labels, labels, itself=True, ks=(1, 2, 4, 8))
    result = retrieval_metrics(x, labels, similarity=similarity)
    assert list(result) == KEYS
    for name in KEYS[:-2]:
        mean = np.mean([value[name] for value in expected])
        assert result[name] == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("tile", [7, 600, 10_000])
@pytest.mark.parametrize(
    ("size", "depth"), [(50, 1), (50, 3), (50, 20), (50, 49), (2_000, 1), (2_000, 30), (2_000, 300)]
)
def test_a_cut_below_the_depth_changes_nothing_above_it(size, depth, tile, monkeypatch):
    """The partial selection, with ties across the cut and across the tiles of the gallery."""
    monkeypatch.setattr(ranks_module, "_TILE", tile)
    rng = np.random.default_rng(depth)
    x = rng.integers(-2, 3, size=(size, 2)).astype(np.float32)
    x[::16] += 4
    codes = rng.integers(size // 12, size=size)
    for part, cut in rank_blocks(x, codes, None, codes, similarity="dot", depth=depth):
        whole_part, whole = next(rank_blocks(x, codes, None, codes, similarity="dot", depth=size))
        assert part == whole_part
        for k in {1, depth // 2 or 1, depth}:
            for metric in (retrieval.recall_at_k, retrieval.map_at_k):
                np.testing.assert_allclose(metric(cut, k), metric(whole, k), atol=1e-12)
        for metric in (retrieval.map_at_r, retrieval.r_precision) if depth == 49 else ():
            np.testing.assert_allclose(metric(cut), metric(whole), atol=1e-12)


@pytest.mark.parametrize("case", ["c0", "c1", "c2"])
def test_golden(case):
    x, labels = GOLDEN[f"{case}/embeddings"], GOLDEN[f"{case}/labels"]
    result = retrieval_metrics(x, labels, ks=(1, 2, 4, 8, 10))
    names = {name: name for name in [*KEYS[:7], "recall@10"]} | {"map@1000": "map"}
    for ours, theirs in names.items():
        assert result[ours] == pytest.approx(float(GOLDEN[f"{case}/{theirs}"]), abs=1e-12)
    assert result["num_lone"] == (case == "c1")
    pml = retrieval_metrics(x, labels, compat="pml")
    for ours, theirs in (
        ("precision@1", "precision_at_1"),
        ("map@r", "mean_average_precision_at_r"),
        ("map@1000", "mean_average_precision"),
    ):
        assert pml[ours] == pytest.approx(float(GOLDEN[f"{case}/pml_{theirs}"]), abs=1e-6)


@pytest.mark.parametrize("case", ["sop", "cub", "large"])
def test_golden_map_at_1000_of_revisiting_dml(case):
    golden = np.load(GOLDEN_FILES / "map_at_1000__rdml.npz")
    x, labels = golden[f"{case}/embeddings"], golden[f"{case}/labels"]
    values = query_metrics(x, labels, compat="rdml")["map@1000"]
    np.testing.assert_allclose(values, golden[f"{case}/map_1000"], atol=5e-5)


@pytest.mark.parametrize("case", ["c0", "c1", "c2"])
def test_golden_nmi(case, monkeypatch):
    x, labels = GOLDEN[f"{case}/embeddings"], GOLDEN[f"{case}/labels"]
    given_clusters = GOLDEN[f"{case}/cluster_labels"]
    monkeypatch.setattr(retrieval, "clusters", lambda *args, **kwargs: given_clusters)
    assert nmi(x, labels) == pytest.approx(float(GOLDEN[f"{case}/nmi_arithmetic"]), abs=1e-12)
    same = labels[:, None] == labels
    together = given_clusters[:, None] == given_clusters
    pairs = ~np.eye(len(labels), dtype=bool)
    precision = (same & together & pairs).sum() / (together & pairs).sum()
    recall = (same & together & pairs).sum() / (same & pairs).sum()
    expected = 2 * precision * recall / (precision + recall)
    assert f1(x, labels) == pytest.approx(expected, abs=1e-12)


def on_an_arc(x) -> np.ndarray:
    """Points of a line laid on an arc: the cosine orders them as the distance does."""
    return np.stack([np.cos(np.asarray(x) / 20), np.sin(np.asarray(x) / 20)], axis=1)


LINE = [0, 1, 2.2, 3.5, 4.9, 6.4, 8]  # field-retrieval.md, section 5, cases 1 to 5
LABELS = [0, 0, 1, 0, 1, 1, 2]
EVEN, HALVES = [0, 1, 0, 1], [0, 0, 1, 1]
ZEROS, NONE = [0, 0, 0, 0], None
COLUMNS = ("recall@1", "recall@2", "precision@1", "r_precision", "map@r", "map@1000", "num_lone")
WORKED = [
    (LINE, LABELS, "pml", (NONE, NONE, 0.5, 0.3333, 0.2917, 0.6153, 1)),
    (LINE, LABELS, "oml", (0.4286, NONE, np.nan, NONE, NONE, 0.5274, 1)),
    (LINE, LABELS, "rdml", (0.4286, 0.5714, NONE, NONE, 0.2778, 0.3516, 1)),
    (LINE[:6], LABELS[:6], "pml", (NONE, NONE, 0.5, 0.3333, 0.2917, 0.6292, 0)),
    (LINE[:6], LABELS[:6], "oml", (0.5, NONE, 0.5, 0.3333, NONE, 0.6292, 0)),
    (LINE[:6], LABELS[:6], "rdml", (0.5, NONE, NONE, NONE, 0.3611, 0.4194, 0)),
    ([0, 0.1, 0.2, 5, 5.1], [0, 0, 0, 1, 1], "rdml", (1, NONE, NONE, NONE, 0.6, 0.6, 0)),
    (ZEROS, EVEN, "pml", (NONE, NONE, 0.25, NONE, 0.25, NONE, 0)),
    (ZEROS, EVEN, "rdml", (0.5, NONE, NONE, NONE, 0.375, NONE, 0)),
    (ZEROS, HALVES, "pml", (NONE, NONE, 0.5, 0.5, 0.5, NONE, 0)),
]


@pytest.mark.parametrize(("points", "labels", "compat", "expected"), WORKED)
def test_what_the_tools_gave(points, labels, compat, expected):
    result = retrieval_metrics(on_an_arc(points), labels, ks=(1, 2, 3), compat=compat)
    for name, value in zip(COLUMNS, expected, strict=True):
        if value is not None:
            assert result[name] == pytest.approx(value, abs=6e-5, nan_ok=True), name


@pytest.mark.parametrize(
    ("compat", "depth", "expected"),
    [
        ("pml", 1000, {"precision@1": 0, "r_precision": 0.6667, "map@r": 0.3889}),
        ("oml", 4, {"map@1000": 0.6389 / 2}),
    ],
)
def test_a_query_apart(monkeypatch, compat, depth, expected):
    monkeypatch.setattr(retrieval, "_MAP_DEPTH", depth)
    gallery = {"gallery": on_an_arc([1, 2, 3, 4]), "gallery_labels": [1, 0, 0, 0]}
    result = retrieval_metrics(on_an_arc([0, 0]), [0, 5], compat=compat, **gallery)
    assert {name: result[name] for name in expected} == pytest.approx(expected, abs=6e-5)


@given(st.integers(0, 10**6), st.sampled_from([None, "pml", "oml", "rdml"]))
def test_row_order_does_not_matter(seed, compat):
    """With ties under our own convention, without for the sequential tools."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, size=(24, 2)) if compat is None else rng.standard_normal((24, 5))
    labels = rng.integers(6, size=24)
    order = rng.permutation(24)
    how = {"similarity": "dot" if compat is None else "cosine", "compat": compat}
    first = retrieval_metrics(x, labels, **how)
    again = retrieval_metrics(x[order], labels[order], **how)
    for name, value in first.items():
        assert again[name] == pytest.approx(value, rel=1e-12, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("num_items", "dim"), [(4, 3), (60, 512), (999, 17), (1500, 64)])
def test_constant_embeddings_score_chance(num_items, dim):
    """Bit-equal rows tie whatever the kernel does at the edges of its tiles."""
    labels = np.arange(num_items) % 2
    rng = np.random.default_rng(dim)
    result = retrieval_metrics(np.tile(rng.standard_normal(dim), (num_items, 1)), labels)
    same = (np.bincount(labels)[labels] - 1) / (num_items - 1)
    for name in ("precision@1", "r_precision"):
        assert result[name] == pytest.approx(same.mean(), abs=1e-12)
    half = num_items // 2
    twice = np.tile(rng.standard_normal((half, dim)), (2, 1))
    copies = retrieval_metrics(twice, np.arange(2 * half) % half)
    # a copy is not the query: self is removed by index
    assert copies["recall@1"] == copies["map@r"] == 1


def test_labels_of_any_size():
    big = 2**62 + np.arange(4)
    x = np.eye(4)[[0, 0, 1, 1]] + 0.01 * np.eye(4)
    with pytest.raises(LikenessError):
        retrieval_metrics(x, big)
    for labels in (
        2**24 + np.array([0, 0, 1, 1]),
        big[[0, 0, 1, 1]].tolist(),
        ["a", "a", "b", "b"],
        np.array([2**63, 2**63, 2**63 + 1, 2**63 + 1], np.uint64),
    ):
        assert retrieval_metrics(x, labels)["recall@1"] == 1
    assert retrieval_metrics(x, [2**70, 2**70, 2**70 + 1, -(2**70)])["num_lone"] == 2
    mixed = label_codes(np.array([2**63 + 5, 7], np.uint64), np.array([7, -1]))
    assert mixed[0].tolist() == [2, 1]
    assert mixed[1].tolist() == [1, 0]


def test_lone_queries():
    x, labels = on_an_arc(LINE), LABELS
    excluded, zero = retrieval_metrics(x, labels), retrieval_metrics(x, labels, lone="zero")
    for found, number in ((excluded, 6), (zero, 7)):
        assert (found["num_queries"], found["num_lone"]) == (number, 1)
    assert all(zero[name] == pytest.approx(excluded[name] * 6 / 7) for name in KEYS[:-2])
    with pytest.raises(LikenessError):
        retrieval_metrics(x, labels, lone="error")
    assert retrieval_metrics(x[:2], [0, 0], ks=(1, 500))["recall@500"] == 1  # fewer items than k


EYE = np.eye(3)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((np.empty((0, 3)), []), {}),
        ((np.array([[1, np.nan], [0, 1]]), [0, 0]), {}),
        ((np.array([[1, 1e300], [0, 1]]), [0, 0]), {}),
        ((EYE, [0.0, 0.0, 1.0]), {}),
        ((EYE, [0, 0]), {}),
        ((EYE, [[0], [0], [1]]), {}),
        ((EYE, [0, 0, 1]), {"gallery": np.eye(4), "gallery_labels": [0, 0, 1, 1]}),
        ((EYE, [0, 0, 1]), {"gallery": EYE, "gallery_labels": ["0", "0", "1"]}),
        ((EYE, [0, 0, 1]), {"gallery": EYE, "gallery_labels": [0, 0, 1], "compat": "rdml"}),
        ((EYE, [0, 0, 1]), {"compat": "PML"}),
        ((EYE, [0, 0, 1]), {"compat": "pml", "lone": "zero"}),
        ((EYE, [0, 0, 1]), {"lone": "skip"}),
        ((EYE, [0, 0, 1]), {"ks": (0,)}),
        ((EYE, [0, 0, 1]), {"similarity": "cosin"}),
        ((1e30 * EYE, [0, 0, 1]), {"similarity": "dot"}),  # beyond float32
        ((EYE, [0, 1, 2]), {}),  # no query has a relevant item
    ],
)
def test_bad_input(arguments, keywords):
    with pytest.raises(LikenessError):
        retrieval_metrics(*arguments, **keywords)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_large_gallery_is_not_copied_and_gives_the_same(monkeypatch, similarity):
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.standard_normal((30, 9)), 2, axis=0) * rng.integers(1, 3, (60, 1))
    rows[7] = 0
    labels, other = rng.integers(0, 7, 60), rng.standard_normal((20, 9))
    for gallery in ({}, {"gallery": rows, "gallery_labels": labels}):
        asked = (other, labels[:20]) if gallery else (rows, labels)
        whole = query_metrics(*asked, similarity=similarity, **gallery)
        monkeypatch.setattr(ranks_module, "LARGE", 1)
        again = query_metrics(*asked, similarity=similarity, **gallery)
        monkeypatch.undo()
        for name, values in whole.items():
            np.testing.assert_allclose(again[name], values, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("is_large", [False, True])
def test_tiles_of_the_gallery_change_no_rank(monkeypatch, similarity, is_large):
    """With repeated rows and items that are not searched, in the same tile and in others."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((400, 9)).astype(np.float32)
    rows[200:350] = rows[rng.integers(200, size=150)]
    queries, itself = rows[::4], (np.arange(100), 4 * np.arange(100))
    codes = rng.integers(0, 90, 400)
    how = {"similarity": similarity, "depth": 9, "itself": itself}
    found = []
    monkeypatch.setattr(ranks_module, "LARGE", 1 if is_large else 1000)
    for tile in (1000, 150, 11):
        monkeypatch.setattr(ranks_module, "_TILE", tile)
        monkeypatch.setattr(ranks_module, "_CELLS", 100 * tile)
        blocks = rank_blocks(queries, codes[::4], rows, codes, **how)
        ranks = [each._replace(query=each.query + part.start) for part, each in blocks]
        found.append([np.concatenate(of) for of in zip(*ranks, strict=True)])
    for tiled in found[1:]:
        for values, expected in zip(tiled, found[0], strict=True):
            np.testing.assert_array_equal(values, expected)


def test_clusters_and_their_metrics():
    x, labels = random_points(200, 6, 5, seed=1)
    x += 40 * np.eye(6)[labels % 6]
    assert nmi(x, labels) == pytest.approx(1)
    assert f1(x, labels) == pytest.approx(1)
    order = np.random.default_rng(2).permutation(200)
    noisy = np.random.default_rng(3).standard_normal((200, 6))
    assert nmi(noisy[order], labels[order], num_clusters=9) == nmi(noisy, labels, num_clusters=9)
    assert f1(noisy[order], labels[order]) == f1(noisy, labels)
    expected = normalized_mutual_info_score(labels, retrieval.clusters(noisy, 9))
    assert nmi(noisy, labels, num_clusters=9) == pytest.approx(expected, abs=1e-12)
    assert nmi(np.ones((6, 2)), [0, 0, 0, 1, 1, 1]) == 0
    assert f1(np.ones((2, 2)), ["a", "b"], num_clusters=2) == 0
