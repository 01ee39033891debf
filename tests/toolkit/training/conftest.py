"""Trainings of the voices into folders of the test."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from likeness.recipe import Recipe, fit
from tests.toolkit.training.tiny_runs import cut_and_resumed


@pytest.fixture
def train(voices, tmp_path):
    """Trains a recipe into the folder `name` of the test, which it returns; with `cut_at` the
    training is stopped before that step, and goes on.
    """

    def into(recipe: Recipe, name: str = "run", *, cut_at: int | None = None, **how: Any) -> Path:
        out, settings = tmp_path / name, {"data": voices, **how}
        if cut_at is None:
            fit(recipe, out=out, **settings)
        else:
            cut_and_resumed(recipe, at=cut_at, out=out, **settings)
        return out

    return into


@pytest.fixture
def data(voices, tmp_path):
    """A copy of the voices, to be changed."""
    return Path(shutil.copytree(voices, tmp_path / "data"))
