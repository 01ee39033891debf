"""Checkpoints: they load without the recipe, run no code, and are written whole or not at all."""

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from likeness.eval.formats.provenance import sha256
from likeness.eval.formats.runs import BEST, LAST, find_model
from likeness.modalities.speaker.features import KaldiFbank
from likeness.models.run import load_model
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.embedder import TorchEmbedder
from tests.tiny import BASE, untrained

RECIPE = replace(BASE, frontend=partial(KaldiFbank, num_mels=16, window="povey", cmn=False))


def test_a_checkpoint_needs_no_recipe(tmp_path):
    file = tmp_path / LAST
    model = TorchEmbedder(RECIPE.frontend(), RECIPE.backbone(16)).eval()
    settings: dict[str, Any] = {"similarity": "simple:0.3", "step": 7, "metrics": {"eer": 0.1}}
    checkpoint.save_model(file, model, RECIPE, **settings)
    loaded = load_model(tmp_path)
    wave = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 16000)).astype(np.float32))
    with torch.no_grad():
        assert torch.equal(loaded.embedder(wave), model(wave))
    assert loaded.embedder.frontend.window == "povey"
    assert (loaded.similarity, loaded.modality, loaded.step) == ("simple:0.3", "speaker", 7)
    assert loaded.digest == sha256(file)
    shutil.copy(file, tmp_path / BEST)
    assert find_model(tmp_path).name == BEST


def test_files_of_another_kind_are_refused_with_a_sentence(tmp_path):
    whole = untrained(tmp_path / "run") / LAST
    tensors, description, _ = checkpoint.read(whole, checkpoint.FORMAT)
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:-100])
    bent = tensors | {"backbone.seg_1.bias": torch.zeros(9)}
    checkpoint.save(tmp_path / "bent", bent, description, checkpoint.FORMAT)
    code = description | {"backbone": {"call": "os.system", "args": {"command": "true"}}}
    checkpoint.save(tmp_path / "code", tensors, code, checkpoint.FORMAT)
    checkpoint.save(tmp_path / "later", tensors, description, "likeness.checkpoint/99")
    (tmp_path / "folder").mkdir()
    for name, says in (
        ("cut", "no whole model file"),
        ("bent", "shape"),
        ("code", "neither of Likeness nor"),
        ("later", r"of format 'likeness\.checkpoint/99'"),
        ("nothing", "does not exist"),
        ("folder", "holds no checkpoint"),
    ):
        with pytest.raises(ValueError, match=says):
            load_model(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "metadata"),
    [("net.pth", None), ("net.safetensors", {"format": "pt"}), ("net.safetensors", None)],
)
def test_the_error_for_weights_of_other_projects_says_where_they_are_read(name, metadata, tmp_path):
    state = torch.nn.Linear(2, 3).state_dict()
    if name.endswith(".pth"):
        torch.save(state, tmp_path / name)
    else:
        save_file(state, tmp_path / name, metadata=metadata)
    with pytest.raises(ValueError, match=r"own\.py .*own_network\.md"):
        load_model(tmp_path / name)


def test_equal_models_have_equal_bytes_and_one_digest(tmp_path):
    tensors = {"b": torch.arange(6).reshape(2, 3), "a": torch.ones(3), "c": torch.zeros(())}
    for number in range(8):  # safetensors writes its metadata in one of two orders, by chance
        checkpoint.save(tmp_path / str(number), tensors, {"name": 'é"\\\n\x7f', "n": 1}, "t/1")
    assert len({(tmp_path / str(number)).read_bytes() for number in range(8)}) == 1
    loaded, state, _ = checkpoint.read(tmp_path / "0", "t/1")
    assert state == {"name": 'é"\\\n\x7f', "n": 1}
    assert all(torch.equal(loaded[name], value) for name, value in tensors.items())


def test_a_file_that_changes_after_it_was_read_changes_no_weight(tmp_path):
    path = tmp_path / "m.safetensors"
    checkpoint.save(path, {"a": torch.ones(1000)}, {}, "t/1")
    tensors, _, _ = checkpoint.read(path, "t/1")
    with path.open("rb+") as file:
        file.write(b"\1" * path.stat().st_size)
    assert torch.equal(tensors["a"], torch.ones(1000))
