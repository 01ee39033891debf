"""Fine-tuning starts from models of other projects as well, which the command reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from likeness.models.initial import read_initial
from toolkit.backbones.resnet import ResNet
from toolkit.models.checkpoint import FORMAT, find_model, read
from toolkit.training import recipe as recipes
from toolkit.training import start
from toolkit.training.recipe import Optim, Recipe, Schedule
from toolkit.training.train import fit

TINY = Path(__file__).parents[2] / "tiny.py"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return replace(
        recipes.load(f"{TINY}:arcface")[0],
        backbone=partial(ResNet, dim=10, width=4),
        measure=None,
        optim=Optim(lr=0.0),
        schedule=Schedule(steps=1),
    )


@pytest.fixture
def wespeaker(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    torch.save(ResNet(16, dim=10, width=4).state_dict(), tmp_path / "avg_model.pt")
    return tmp_path


def test_a_wespeaker_checkpoint_is_fine_tuned(
    recipe: Recipe, wespeaker: Path, voices: Path
) -> None:
    changed = replace(recipe, init=f"wespeaker:{wespeaker}")
    fit(changed, data=voices, out=wespeaker / "run", read_initial=read_initial)
    weights, _, _ = read(find_model(wespeaker / "run"), FORMAT)
    expected = torch.load(wespeaker / "avg_model.pt", weights_only=True)
    assert torch.equal(weights["backbone.conv1.weight"], expected["conv1.weight"])
    again = read_initial(str(wespeaker / "run"))
    assert again.weights.keys() == start.read_initial(str(wespeaker / "run")).weights.keys()


def test_an_initial_model_that_does_not_fit_leaves_no_folder(
    recipe: Recipe, wespeaker: Path, voices: Path
) -> None:
    for init, keyword in (
        (f"wespeaker:{wespeaker / 'nowhere.pt'}", "nowhere"),
        (str(wespeaker / "nowhere"), "nowhere"),
        ("speechbarin:somewhere", "speechbarin"),
    ):
        with pytest.raises(ValueError, match=keyword):
            fit(
                replace(recipe, init=init),
                data=voices,
                out=wespeaker / "run",
                read_initial=read_initial,
            )
        assert not (wespeaker / "run").exists()
