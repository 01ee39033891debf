"""Ids that differ in the extension of a file alone."""

from __future__ import annotations

import numpy as np
import pytest

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.scoring.score import with_spellings
from likeness.eval.types import Embeddings, Trials

ROWS = np.eye(3)
EMBEDDINGS = Embeddings(("ann/1", "ann/2.flac", "bob/1.0"), ROWS)


def test_scores_are_those_of_the_ids_without_extension() -> None:
    trials = Trials(("ann/1.wav", "ann/2"), ("ann/2.WAV", "bob/1.0"), [0, 1, 1], [0, 0, 1])
    with pytest.raises(ValueError, match="--strip-extension"):
        likeness.score(trials, EMBEDDINGS)
    scored = likeness.score(trials, EMBEDDINGS, strip_extension=True)
    assert scored.values.tolist() == [0, 1, 0]
    assert scored.trials is trials


def test_it_is_not_offered_where_it_does_not_help() -> None:
    trials = Trials(("ann/1.wav", "cid/1.wav"), ("bob/1.0",), [0, 1], [0, 0])
    with pytest.raises(LikenessError) as caught:
        likeness.score(trials, EMBEDDINGS)
    assert "strip" not in str(caught.value)
    with pytest.raises(ValueError, match="cid/1"):
        likeness.score(trials, EMBEDDINGS, strip_extension=True)


def test_two_files_of_one_name_are_refused() -> None:
    embeddings = Embeddings(("a.wav", "a.flac", "b.wav"), ROWS)
    assert with_spellings(embeddings, ["a.wav", "b"]).ids == (*embeddings.ids, "b")
    with pytest.raises(ValueError, match=r"'a'.*a\.wav and a\.flac"):
        with_spellings(embeddings, ["a"])


def test_models_and_both_sides_apart() -> None:
    trials = Trials(("m",), ("ann/2",), [0], [0])
    scored = likeness.score(
        trials,
        Embeddings(("ann/1",), [[1, 0]]),
        probe=Embeddings(("ann/2.wav",), [[1, 0]]),
        models={"m": ["ann/1.wav"]},
        strip_extension=True,
    )
    assert scored.values.tolist() == [1]
