"""Runs that train a network of the hub: they start from it, resume, and need its files no more."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from likeness.eval.formats.runs import find_model
from likeness.modalities.speaker.augment import train_view
from likeness.models import _hub
from likeness.models.load import load_named
from likeness.toolkit.models.checkpoint import FORMAT, read, save
from likeness.toolkit.models.export import export
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training.recipe import Compute, Optim, Recipe, Schedule
from likeness.toolkit.training.train import fit
from tests import tiny, tiny_hub
from tests.toolkit.training.tiny_runs import cut_and_resumed


def recipe(folder: Path, **backbone: Any) -> Recipe:
    """A run of four steps over a network that a folder holds."""
    return replace(
        tiny.BASE,
        frontend=_hub.frontend(str(folder)),
        backbone=_hub.backbone(str(folder), **backbone),
        augment=partial(train_view, seconds=(0.2, 0.3)),
        optim=Optim(lr=0.01),
        measure=None,
        schedule=Schedule(steps=4, save_every=2),
        compute=Compute(threads=1),
    )


@pytest.mark.parametrize("name", ["wav2vec2 large", "wavlm base"])
def test_a_run_resumes_and_its_model_needs_neither_hub_nor_folder(
    name: str, voices: Path, tmp_path: Path
) -> None:
    """Dropout and all: the weights after a power cut are those of a run without one."""
    folder = tmp_path / "net"
    tiny_hub.save(name, folder)
    # Layers left out and frames masked at random, as published configurations have it.
    tiny_hub.change(
        folder / "config.json", layerdrop=0.5, mask_time_prob=0.5, apply_spec_augment=True
    )
    changed = recipe(folder, pooling="MHFA", heads=2, compressed=3, dim=8)
    fit(changed, data=voices, out=tmp_path / "whole")
    cut_and_resumed(changed, at=3, data=voices, out=tmp_path / "cut")
    weights, stated, _ = read(find_model(tmp_path / "whole"), FORMAT)
    again, _, _ = read(find_model(tmp_path / "cut"), FORMAT)
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    parts = {key.split(".")[1] for key in weights if key.startswith("backbone.")}
    assert parts == {"network", "pool", "project"}
    shutil.rmtree(folder)
    model = load_named(str(tmp_path / "whole"))
    assert model.embedder.dim == 8
    assert json.loads(stated["backbone"]["args"]["config"])["hidden_size"] == 16
    assert torch.isfinite(model.embedder(torch.randn(2, 4000))).all()
    assert torch.equal(
        model.embedder.state_dict()["backbone.pool.weights_k"], weights["backbone.pool.weights_k"]
    )


@pytest.mark.parametrize(
    ("change", "keyword"),
    [
        ({"hidden_size": 4096}, "weights"),
        ({"_attn_implementation": "a/b"}, "_attn_implementation"),
        ({"auto_map": "net.Net"}, "auto_map"),
        ({"use_kernels": True}, "use_kernels"),
        ({"hidden_act": "org/kernel"}, "hidden_act"),
    ],
)
def test_a_hostile_configuration_in_a_checkpoint_is_refused(
    change: dict[str, Any], keyword: str, tmp_path: Path
) -> None:
    """A checkpoint that comes from elsewhere chooses no code, and no size beyond its weights."""
    tiny_hub.save("hubert large", tmp_path / "net")
    part = _hub.backbone(str(tmp_path / "net"))
    config = {**json.loads(part.keywords["config"]), **change}
    tensors = load_named(f"hub:{tmp_path / 'net'}").embedder.state_dict()
    description = {
        "modality": "speaker",
        "frontend": describe(_hub.frontend(str(tmp_path / "net"))),
        "backbone": describe(partial(part, config=json.dumps(config))),
        "read": describe(tiny.BASE.read),
        "features": "raw",
        "similarity": "cosine",
        "step": 1,
    }
    save(tmp_path / "model.safetensors", tensors, description, FORMAT)
    with pytest.raises(ValueError, match=keyword):
        load_named(str(tmp_path / "model.safetensors"))


@pytest.mark.slow  # exports take long; image networks: tests/toolkit/models/test_export.py
@pytest.mark.parametrize("name", ["wav2vec2 large", "wavlm base"])
def test_a_network_of_the_hub_is_exported(name: str, tmp_path: Path) -> None:
    """Waves of several lengths have the same embeddings on ONNX Runtime, and the file needs no
    transformers.
    """
    tiny_hub.save(name, tmp_path / "net")
    parity = export(load_named(f"hub:{tmp_path / 'net'}"), tmp_path / "net.onnx")
    assert parity.distance < 1e-6
    assert load_named(str(tmp_path / "net.onnx")).embedder.dim == 16
