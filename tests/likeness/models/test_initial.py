"""Fine-tuning starts from models of other projects as well, which the command reads."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from likeness.backbones import IResNet, ResNet
from likeness.eval.formats.runs import find_model
from likeness.models.load import load_named, read_initial
from likeness.recipe import Optim, Recipe, Schedule, Tuning, fit
from likeness.toolkit.backbones import resnet
from likeness.toolkit.models.checkpoint import FORMAT, read
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training import start
from tests.tiny_yunet import network

TINY = Path(__file__).parents[2] / "tiny.py"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    backbone = partial(ResNet, dim=10, width=4, blocks=(1, 1, 1, 1))
    own = {"measure": None, "optim": Optim(lr=0.0), "schedule": Schedule(steps=1)}
    return replace(recipes.load(f"{TINY}:arcface")[0], backbone=backbone, **own)


@pytest.fixture
def wespeaker(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    network = ResNet(16, dim=10, width=4, blocks=(1, 1, 1, 1))
    torch.save(network.state_dict(), tmp_path / "avg_model.pt")
    return tmp_path


def test_a_wespeaker_checkpoint_is_fine_tuned(recipe, wespeaker, voices):
    changed = replace(recipe, init=f"wespeaker:{wespeaker}")
    fit(changed, data=voices, out=wespeaker / "run", read_initial=read_initial)
    weights, _, _ = read(find_model(wespeaker / "run"), FORMAT)
    expected = torch.load(wespeaker / "avg_model.pt", weights_only=True)
    assert torch.equal(weights["backbone.conv1.weight"], expected["conv1.weight"])
    again = read_initial(str(wespeaker / "run"))
    assert again.weights.keys() == start.read_initial(str(wespeaker / "run")).weights.keys()


def refused_initials(folder: Path, voices: Path, recipe: Recipe) -> dict[str, tuple[str, str]]:
    """Every way in which `init` can be refused: the text, and a word of the refusal."""
    state = torch.load(folder / "avg_model.pt", weights_only=True)
    cases: dict[str, tuple[str, str]] = {
        "no file": (str(folder / "nowhere"), "nowhere"),
        "no such kind": ("speechbarin:somewhere", "speechbarin"),
        "onnx": (f"insightface:{network(folder / 'n.onnx', (112, 112))}", "cannot train"),
        "of another project": (str(folder / "other.safetensors"), "no checkpoint of Likeness"),
    }
    save_file(state, folder / "other.safetensors")
    nan = torch.full((10,), torch.nan)
    for name, bias in {"1 tensors hold NaN": nan, "1 missing": None}.items():
        changes = state | {"seg_1.bias": bias}
        changed = {key: value for key, value in changes.items() if value is not None}
        torch.save(changed, folder / f"{name}.pt")
        cases[name] = (f"wespeaker:{folder / name}.pt", name)
    smaller = replace(recipe, backbone=partial(ResNet, dim=10, width=2, blocks=(1, 1, 1, 1)))
    fit(smaller, data=voices, out=folder / "smaller")
    cases["another run"] = (str(folder / "smaller"), "of another shape")
    return cases


def test_a_refused_initial_model_leaves_nothing_behind(recipe, wespeaker, voices):
    out = wespeaker / "run"
    for name, (init, keyword) in refused_initials(wespeaker, voices, recipe).items():
        with pytest.raises(ValueError, match=keyword):
            fit(replace(recipe, init=init), data=voices, out=out, read_initial=read_initial)
        assert not out.exists(), name


def test_faces_of_arcface_torch_are_fine_tuned(tmp_path):
    torch.manual_seed(3)
    iresnet = IResNet(3, dim=8, blocks=(1, 2, 1, 1), width=4, image_size=48).eval()
    file = tmp_path / "backbone.pth"
    torch.save({f"module.{name}": value for name, value in iresnet.state_dict().items()}, file)
    loaded: Any = load_named(f"insightface:{file}")
    faces = 255 * torch.rand(2, 3, 48, 48)
    with torch.no_grad():
        expected = iresnet((faces - 127.5) / 127.5)
        assert torch.allclose(loaded.embedder(faces), expected, atol=1e-5)
    assert (loaded.modality, loaded.read.keywords["size"]) == ("face", (48, 48))
    initial = read_initial(f"insightface:{file}")
    assert initial.weights.keys() == {f"backbone.{name}" for name in iresnet.state_dict()}


class Fresh(ResNet):
    """A network with a part that no pretrained model has."""

    fresh = ("seg_2.", "seg_bn_1.")


def test_only_new_parts_may_be_missing(recipe, wespeaker, voices, monkeypatch, capsys):
    monkeypatch.setattr(resnet, "Fresh", Fresh, raising=False)
    monkeypatch.setattr(Fresh, "__module__", resnet.__name__)  # a recipe's parts are of toolkit
    backbone = partial(Fresh, dim=10, width=4, blocks=(1, 1, 1, 1), two_layers=True)
    changes = {"init": f"wespeaker:{wespeaker}", "tuning": Tuning(freeze=("backbone",))}
    fresh = replace(recipe, backbone=backbone, **changes)
    fit(fresh, data=voices, out=wespeaker / "run", read_initial=read_initial)
    assert "5 tensors of it are new (backbone.seg_bn_1.running_mean" in capsys.readouterr().err
    weights, _, _ = read(find_model(wespeaker / "run"), FORMAT)
    expected = torch.load(wespeaker / "avg_model.pt", weights_only=True)
    assert torch.equal(weights["backbone.seg_1.weight"], expected["seg_1.weight"])
