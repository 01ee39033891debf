"""Checkpoints: they load without the recipe, run no code, and are written whole or not at all."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from likeness.eval.formats.provenance import sha256
from likeness.modalities.speaker import audio
from likeness.modalities.speaker.features import KaldiFbank
from likeness.models.run import load_model
from likeness.toolkit.backbones.resnet import ResNet34
from likeness.toolkit.losses.margin import ArcFace
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.training.recipe import Recipe

RECIPE = Recipe(
    modality="speaker",
    frontend=partial(KaldiFbank, num_mels=16, window="povey", cmn=False),
    backbone=partial(ResNet34, dim=8, width=4),
    loss=ArcFace,
    items=audio.speed_copies,
    read=audio.read,
)


def embedder() -> TorchEmbedder:
    torch.manual_seed(0)
    return TorchEmbedder(RECIPE.frontend(), RECIPE.backbone(16)).eval()


def test_a_checkpoint_needs_no_recipe(tmp_path: Path) -> None:
    model = embedder()
    checkpoint.save_model(
        tmp_path / "last.safetensors",
        model,
        RECIPE,
        similarity="simple:0.3",
        step=7,
        metrics={"eer": 0.1},
    )
    loaded = load_model(tmp_path)
    wave = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 16000)).astype(np.float32))
    with torch.no_grad():
        assert torch.equal(loaded.embedder(wave), model(wave))
    assert loaded.embedder.frontend.window == "povey"
    assert (loaded.similarity, loaded.modality, loaded.step) == ("simple:0.3", "speaker", 7)
    assert loaded.digest == sha256(tmp_path / "last.safetensors")


def test_best_goes_before_last(tmp_path: Path) -> None:
    for name in (checkpoint.LAST, checkpoint.BEST):
        checkpoint.save_model(
            tmp_path / name, embedder(), RECIPE, similarity="cosine", step=1, metrics={}
        )
        assert checkpoint.find_model(tmp_path).name == name


def test_files_of_another_kind_are_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(
        {"a": torch.zeros(1)}, path, metadata={"format": "likeness.checkpoint/99", "state": "{}"}
    )
    with pytest.raises(ValueError, match=r"of format 'likeness\.checkpoint/99'"):
        load_model(path)
    checkpoint.save(path, {"a": torch.zeros(1)}, {}, "likeness.other/1")
    with pytest.raises(ValueError, match=r"of format 'likeness\.other/1'"):
        load_model(path)
    with pytest.raises(ValueError, match="does not exist"):
        load_model(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no checkpoint"):
        load_model(tmp_path)


def test_truncated_and_foreign_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    checkpoint.save_model(path, embedder(), RECIPE, similarity="cosine", step=1, metrics={})
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="no whole safetensors file"):
        load_model(path)
    path.write_bytes(whole)
    tensors, description = checkpoint.load(path, checkpoint.FORMAT)
    tensors.pop("backbone.conv1.weight")
    tensors["backbone.seg_1.bias"] = torch.zeros(9)
    checkpoint.save(path, tensors, description, checkpoint.FORMAT)
    with pytest.raises(
        ValueError,
        match=r"shape",
    ):
        load_model(path)


@pytest.mark.parametrize(
    ("name", "metadata", "said"),
    [
        ("resnet50.pth", None, "no whole safetensors file of Likeness"),
        ("resnet50.safetensors", {"format": "pt"}, "of format 'pt'"),  # as the hub's files are
        ("resnet50.safetensors", None, "without a description by Likeness"),
    ],
)
def test_the_error_for_weights_of_other_projects_says_where_they_are_read(
    name: str, metadata: dict[str, str] | None, said: str, tmp_path: Path
) -> None:
    state = torch.nn.Linear(2, 3).state_dict()
    if name.endswith(".pth"):
        torch.save(state, tmp_path / name)
    else:
        save_file(state, tmp_path / name, metadata=metadata)
    with pytest.raises(
        ValueError,
        match=rf"{said}.*; weights of another project start an image network by "
        r"backbone.weights=FILE$",
    ):
        load_model(tmp_path / name)


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    checkpoint.save_model(path, embedder(), RECIPE, similarity="cosine", step=1, metrics={})
    tensors, description = checkpoint.load(path, checkpoint.FORMAT)
    description["backbone"] = {"call": "os.system", "args": {"command": "true"}}
    checkpoint.save(path, tensors, description, checkpoint.FORMAT)
    with pytest.raises(ValueError, match="neither of Likeness nor"):
        load_model(path)


def test_a_failed_write_leaves_the_file_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, {"a": torch.zeros(3)}, {"n": 1}, "t/1")

    def full_disk(tensors: object, file: Path, metadata: object) -> None:
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, {"a": torch.ones(3)}, {"n": 2}, "t/1")
    assert [path.name for path in tmp_path.iterdir()] == ["last.safetensors"]
    tensors, state = checkpoint.load(path, "t/1")
    assert state == {"n": 1}
    assert torch.equal(tensors["a"], torch.zeros(3))


def test_equal_models_have_equal_bytes_and_one_digest(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6).reshape(2, 3), "a": torch.ones(3), "c": torch.zeros(())}
    for number in range(8):  # safetensors writes its metadata in one of two orders, by chance
        checkpoint.save(tmp_path / str(number), tensors, {"name": 'é"\\\n\x7f', "n": 1}, "t/1")
    assert len({(tmp_path / str(number)).read_bytes() for number in range(8)}) == 1
    loaded, state = checkpoint.load(tmp_path / "0", "t/1")
    assert state == {"name": 'é"\\\n\x7f', "n": 1}
    assert all(torch.equal(loaded[name], value) for name, value in tensors.items())


def test_a_file_that_changes_after_it_was_read_changes_no_weight(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    checkpoint.save(path, {"a": torch.ones(1000)}, {}, "t/1")
    tensors, _ = checkpoint.load(path, "t/1")
    with path.open("rb+") as file:
        file.write(b"\1" * path.stat().st_size)
    assert torch.equal(tensors["a"], torch.ones(1000))
