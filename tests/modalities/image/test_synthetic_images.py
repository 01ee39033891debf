"""Drawn faces and glyphs: the same for the same seed, told apart by their pixels above chance but
not well, and readable as data sets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from likeness.eval.verification import eer
from likeness.modalities import folders, synthetic_faces, synthetic_glyphs
from likeness.modalities.image import images, small_sets


def pixel_eer(drawn: list[np.ndarray], labels: np.ndarray) -> float:
    """Equal error rate of the cosine of centred pixels."""
    flat = np.stack(drawn).reshape(len(drawn), -1).astype(np.float64)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    first, second = np.triu_indices(len(flat), k=1)
    scores, target = (flat @ flat.T)[first, second], labels[first] == labels[second]
    return float(eer(scores[target], scores[~target]))


def test_faces_are_learnable_and_not_easy() -> None:
    labels = np.repeat(np.arange(12), 6)
    drawn = [
        synthetic_faces.face(subject, shot, size=48).image
        for subject in range(12)
        for shot in range(6)
    ]
    assert 0.15 < pixel_eer(drawn, labels) < 0.45


def test_glyphs_are_learnable_and_not_easy() -> None:
    labels = np.repeat(np.arange(24), 6)
    drawn = [
        synthetic_glyphs.glyph(c // 6, c % 6, drawer, size=28)
        for c in range(24)
        for drawer in range(6)
    ]
    assert 0.10 < pixel_eer(drawn, labels) < 0.45


def test_landmarks_lie_where_the_template_has_them() -> None:
    """insightface's arcface_dst, on average; and at another size they scale with the image."""
    template = np.array(
        [
            [38.2946, 51.6963],
            [73.5318, 51.5014],
            [56.0252, 71.7366],
            [41.5493, 92.3655],
            [70.7299, 92.2041],
        ]
    )
    result = np.stack(
        [
            synthetic_faces.face(subject, shot).landmarks
            for subject in range(15)
            for shot in range(4)
        ]
    )
    np.testing.assert_allclose(result.mean(axis=0), template, atol=4.0)
    assert 1.0 < result.std(axis=0).mean() < 8.0
    half = synthetic_faces.face(0, 0, size=56).landmarks
    np.testing.assert_allclose(
        (half + 0.5) * 2, synthetic_faces.face(0, 0).landmarks + 0.5, atol=1e-9
    )


def test_every_glyph_has_ink_and_margins() -> None:
    for character in range(60):
        drawn = synthetic_glyphs.glyph(character, character % 7, character % 5, size=64)
        assert 0.01 < (drawn > 127).mean() < 0.5


def test_written_sets_are_read(tmp_path: Path) -> None:
    synthetic_faces.write_faces(tmp_path / "faces", num_subjects=2, num_shots=2, size=32)
    items = folders.items(tmp_path / "faces", split="all", modality="image")
    assert [(item.id, item.label) for item in items[:2]] == [
        ("subject000/shot00.png", "subject000"),
        ("subject000/shot01.png", "subject000"),
    ]
    np.testing.assert_array_equal(
        images.read(items[1]), synthetic_faces.face(0, 1, size=32).image.transpose(2, 0, 1)
    )
    synthetic_glyphs.write_glyphs(
        tmp_path / "glyphs", num_alphabets=2, num_characters=2, num_drawers=2, size=28
    )
    np.testing.assert_array_equal(
        images.read(
            folders.items(tmp_path / "glyphs", split="all", modality="image")[0], grey=True
        )[0],
        synthetic_glyphs.glyph(0, 0, 0, size=28),
    )
    background = tmp_path / "omniglot" / "images_background"
    synthetic_glyphs.write_glyphs(
        background, num_alphabets=22, num_characters=1, num_drawers=2, by_alphabet=True
    )
    train, test = (
        small_sets.omniglot_items(tmp_path, split="train"),
        small_sets.omniglot_items(tmp_path, split="test"),
    )
    assert (len(train), len(test), test[0].label) == (40, 4, "alphabet20/character00")
    np.testing.assert_array_equal(small_sets.read(train[0])[0], synthetic_glyphs.glyph(0, 0, 0))
