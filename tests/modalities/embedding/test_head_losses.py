"""The recipe of twenty losses on embeddings: equal terms for all, and ranges that hold."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from likeness.toolkit.backbones.head import Head
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training import recipe as recipes
from tests.modalities.embedding import test_head

RECIPE = Path(__file__).parents[3] / "recipes" / "head_losses.py"
OF_THE_LOSS = {"loss", "backbone", "optim", "similarity", "memory"}


miniature = test_head.miniature  # what tests/test_recipes.py trains the recipe on


_CONTENT = recipes.read(str(RECIPE))
EVERY, RANGES = _CONTENT["RECIPES"], _CONTENT["RANGES"]


def test_the_variants_differ_in_their_loss_and_what_it_needs() -> None:
    assert len(EVERY) >= 20
    common = EVERY["softmax"]
    for name, recipe in EVERY.items():
        for field in dataclasses.fields(recipe):
            if field.name not in OF_THE_LOSS:
                own, shared = getattr(recipe, field.name), getattr(common, field.name)
                assert describe(own) == describe(shared), (name, field.name)
        optim = dataclasses.replace(common.optim, proxy_lr_scale=recipe.optim.proxy_lr_scale)
        assert recipe.optim == optim, name


def test_two_settings_of_every_loss_are_tuned() -> None:
    """That each fits its recipe: tests/likeness/commands/test_recipes.py."""
    assert EVERY.keys() == RANGES.keys()
    for name, settings in RANGES.items():
        assert len(settings) == (1 if name.startswith("cosine_fixed") else 2), name


@pytest.mark.parametrize(("dim", "hidden"), [(0, 0), (3, 0), (0, 4)])
def test_a_gain_multiplies_what_the_head_gives_at_the_start(dim: int, hidden: int) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 5))).float()
    torch.manual_seed(0)
    plain = Head(5, dim=dim, hidden=hidden)(x)
    torch.manual_seed(0)
    louder = Head(5, dim=dim, hidden=hidden, gain=4.0)(x)
    torch.testing.assert_close(louder, 4 * plain)
