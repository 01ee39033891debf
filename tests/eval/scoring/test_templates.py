"""Pooling against loops that follow the words (mean of the media, then their sum), and enrolment
lists in every format.
"""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.subjects import read_enrolment
from likeness.eval.scoring import templates as module
from likeness.eval.scoring.templates import pool


def made(rows: int, dim: int = 3, seed: int = 0) -> Embeddings:
    matrix = np.random.default_rng(seed).standard_normal((rows, dim)) * 5
    return Embeddings(tuple(f"u{k}" for k in range(rows)), matrix, {"similarity": "simple:0.3"})


def brute(
    x: np.ndarray, template: list[int], media: list[int], method: str, weights: np.ndarray
) -> dict[int, np.ndarray]:
    x = x.astype(np.float64) * weights[:, None]
    pooled = {}
    for name in template:
        mine = [k for k, other in enumerate(template) if other == name]
        if method in ("mean", "norm_weighted"):
            pooled[name] = sum(x[k] for k in mine) / (len(mine) if method == "mean" else 1)
            continue
        means = [
            np.mean([x[k] for k in mine if media[k] == medium], axis=0)
            for medium in {media[k] for k in mine}
        ]
        pooled[name] = np.sum(means, axis=0) / (len(means) if method == "ijb_mean" else 1)
    return pooled


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=30),
    st.sampled_from(["mean", "norm_weighted", "ijb", "ijb_mean"]),
    st.booleans(),
    st.sampled_from([3, 9, 1 << 22]),
)
def test_against_loops(labels, method, weighted, block):
    template, media = [t for t, _ in labels], [m for _, m in labels]
    embeddings = made(len(labels))
    weights = np.random.default_rng(1).random(len(labels)) if weighted else np.ones(len(labels))
    expected = brute(embeddings.matrix, template, media, method, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        patch.setattr(module, "_FEW", 5)
        given = weights if weighted else None
        result = pool(embeddings, template, media, method=method, weights=given)
    assert result.ids == tuple(str(name) for name in expected)
    assert result.meta == embeddings.meta
    rows = np.stack(list(expected.values()))
    np.testing.assert_allclose(result.matrix, rows, rtol=1e-5, atol=1e-5)


def test_items_may_serve_several_templates_or_none():
    embeddings = Embeddings(("a", "b", "c"), np.array([[1.0], [2.0], [4.0]]))
    result = pool(embeddings, ["t", "t", "s"], items=["a", "c", "a"])
    assert (result.ids, result.matrix.ravel().tolist()) == (("t", "s"), [2.5, 1])
    assert pool(embeddings, ["t", "t", "s"], items=[0, 2, 0]).matrix.ravel().tolist() == [2.5, 1]
    assert pool(embeddings, [], items=[]).matrix.shape == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"template_of": ["t"]}, r"template_of must be \(3,\)"),
        ({"template_of": ["t"] * 3, "method": "median"}, "'median'"),
        ({"template_of": ["t"] * 3, "method": "ijb"}, "needs media_of"),
        ({"template_of": ["t"] * 3, "items": ["u1", "x", "y"]}, "'x'"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(LikenessError, match=message):
        pool(made(3), **arguments)


@pytest.mark.parametrize(
    "text",
    [
        b"m u1 u2\nn u3\n",
        b"m u1\nm u2\nn u3",
        b"m\tu1\r\nn\tu3\r\nm\tu2\r\n",
        b"# three utterances\n\nm,u1,u2\n  \nn,u3\n",
        b"modelid, utt\nm, u1\nn, u3\nm, u2",
        gzip.compress(b"m u1 u2\nn u3\n"),
    ],
)
def test_enrolment_lists(tmp_path, text):
    (tmp_path / "list").write_bytes(text)
    assert read_enrolment(tmp_path / "list") == {"m": ("u1", "u2"), "n": ("u3",)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model utt\n", "empty"),
        ("m u1\nn\no\n", "line 2"),
        ("m,u1\nn,,u2\n", "line 2"),
        ("m u1 u2\nn u3\nm u2\n", "line 3"),
    ],
)
def test_bad_enrolment_lists(tmp_path, text, message):
    (tmp_path / "list").write_text(text)
    with pytest.raises(LikenessError, match=message):
        read_enrolment(tmp_path / "list")
