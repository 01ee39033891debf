"""Searches in tiles equal those in one piece, with ties within tiles and across their borders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval import blocks, identification, retrieval
from eval.blocks import borders, repeated, scorer
from eval.identification import search_embeddings
from eval.retrieval import query_metrics
from eval.similarity import against, matrix, single

SIMILARITIES = ["cosine", "dot", "simple:0.3", "euclidean", "poincare", "vmf_el", "vmf_kl"]


@contextmanager
def in_tiles(tile: int, depth: int = 1000, room: int = 4) -> Iterator[None]:
    """Tiles of so many rows, blocks of three probes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (identification, blocks):
            patch.setattr(module, "TILE", tile)
            patch.setattr(module, "CELLS", 3 * tile)
        patch.setattr(blocks, "_KEPT", 30_000)
        patch.setattr(identification, "_OWN_ROWS", 4)
        patch.setattr(blocks, "_ROOM", room)
        patch.setattr(blocks, "_SAMPLED", 2)
        patch.setattr(retrieval, "LARGE", 1)
        patch.setattr(retrieval, "_MAP_DEPTH", depth)
        yield


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rows of small integers: float32 inner products are exact, and full of ties."""
    return rng.integers(-1, 3, shape).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 3), st.booleans())
def test_identification_in_tiles(seed: int, tile: int, templates: int, has_ties: bool) -> None:
    rng = np.random.default_rng(seed)
    draw = integers if has_ties else lambda rng, *shape: rng.standard_normal(shape)
    gallery, probes = draw(rng, 25, 3), draw(rng, 20, 3)
    enrolled, who = rng.integers(0, 25 // templates, 25), rng.integers(0, 30 // templates, 20)
    whole = search_embeddings(probes, gallery, enrolled, who, similarity="dot", keep=9)
    with in_tiles(tile):
        parted = search_embeddings(probes, gallery, enrolled, who, similarity="dot", keep=9)
    for name in ("mate", "rival", "highest"):
        np.testing.assert_allclose(getattr(parted, name), getattr(whole, name), atol=1e-5)
    for name in ("above", "tied"):
        np.testing.assert_array_equal(getattr(parted, name), getattr(whole, name))
    assert parted.num_subjects == whole.num_subjects


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 40),
    st.sampled_from([1, 3, 8, 1000]),
    st.integers(1, 4),
    st.booleans(),
)
def test_retrieval_in_tiles(seed: int, tile: int, depth: int, room: int, among: bool) -> None:
    rng = np.random.default_rng(seed)
    rows, labels = integers(rng, 40, 2), rng.integers(0, 5, 40)
    gallery = {} if among else {"gallery": rows[20:], "gallery_labels": labels[20:]}
    asked = (rows, labels) if among else (rows[:20], labels[:20])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_MAP_DEPTH", depth)
        whole = query_metrics(*asked, ks=(1, 3, 50), similarity="dot", **gallery)
    with in_tiles(tile, depth, room):
        parted = query_metrics(*asked, ks=(1, 3, 50), similarity="dot", **gallery)
    assert parted.keys() == whole.keys()
    for name, values in whole.items():
        np.testing.assert_allclose(parted[name], values, atol=1e-12, err_msg=name)


def test_constant_embeddings_in_tiles_score_chance() -> None:
    rows, labels = np.ones((80, 5)), np.arange(80) % 4
    with in_tiles(16, depth=10):
        values = query_metrics(rows, labels, ks=(1,))
    np.testing.assert_allclose(values["recall@1"], 19 / 79)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_equal_rows_in_different_tiles_tie_exactly(similarity: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 37)).astype(np.float32)
    gallery, probes = np.concatenate([rows, rows[::-1]]), rng.standard_normal((31, 37))
    with in_tiles(13):
        found = search_embeddings(
            probes, gallery, np.arange(80), np.arange(31), similarity=similarity
        )
        assert found.tied.tolist() == [1] * 31
        values = query_metrics(
            gallery[:20],
            np.arange(20),
            gallery=gallery,
            gallery_labels=np.arange(80),
            ks=(1,),
            similarity="cosine",
        )
    # Every query meets itself and its copy, which has another label.
    np.testing.assert_array_equal(values["recall@1"], 0.5)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_against_and_single_are_the_matrix(similarity: str, scale: float) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 9, 6)).astype(np.float32) * np.float32(scale)
    x[3] = 0
    with np.errstate(all="ignore"):
        whole = matrix(x, y, similarity)
        np.testing.assert_allclose(against(y, similarity)(x), whole, rtol=1e-6)
        alone = single(x[:, None], y[None], similarity)
    np.testing.assert_allclose(alone, whole, rtol=1e-4, atol=1e-5)
    assert alone.dtype == np.float32


def test_repeated_rows_are_found_and_scored_alike() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 7)).astype(np.float32)
    rows[[4, 30, 49]] = rows[11]
    marked = repeated(rows)
    assert np.flatnonzero(marked).tolist() == [4, 11, 30, 49]
    scores = scorer(rows, marked, "cosine")(rng.standard_normal((5, 7)).astype(np.float32))
    assert (scores[:, [4, 30, 49]] == scores[:, [11]]).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 20))
def test_borders_cut_no_group(sizes: list[int], tile: int) -> None:
    starts = np.cumsum(sizes) - sizes
    cuts = borders(starts, sum(sizes), tile).tolist()
    assert (cuts[0], cuts[-1]) == (0, len(sizes))
    assert cuts == sorted(set(cuts))
    for begin, end in pairwise(cuts):
        assert sum(sizes[begin:end]) <= tile + max(sizes)


def test_templates_that_differ_in_length_alone_tie_in_tiles() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((15, 7)).astype(np.float32)
    rows[:, 0] = 0.0
    longer = 2 * rows
    longer[:, 0] = -0.0
    probes = rows + 0.1 * rng.standard_normal(rows.shape).astype(np.float32)
    with in_tiles(13):
        found = search_embeddings(
            probes, np.concatenate([rows, longer]), np.arange(30), np.arange(15)
        )
    assert found.tied.tolist() == [1] * 15
    assert not found.first.any()


def test_equal_probes_score_alike_in_a_block_of_one_row() -> None:
    rng = np.random.default_rng(0)
    probes = np.tile(rng.standard_normal(128, dtype=np.float32), (4, 1))  # blocks of 3 and of 1
    gallery = rng.standard_normal((400, 128), dtype=np.float32)
    with in_tiles(200):
        found = search_embeddings(probes, gallery, np.arange(400), np.full(4, 1000))
    assert np.unique(found.rival).size == 1
