"""Known attacks by files from elsewhere: each ends as one ValueError, and nothing outside is
touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from likeness.models import _speechbrain
from likeness.models.run import load_model
from likeness.toolkit.models import checkpoint

HOSTILE_YAML = {
    "aliases": "a0: &a0 [x]\n"
    + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
    "merges": "b0: &b0 {x: 1}\n"
    + "".join(f"b{i}: &b{i}\n  <<: [{','.join([f'*b{i - 1}'] * 10)}]\n" for i in range(1, 10)),
    "depth": "[" * 5000,
    "number": "a: 1" + ":1" * 20_000 + ".5",
    "date": "a: 9999-99-99",
    "size": "a: 1" + ":1" * 100_000,
    "bytes": "a: \xff",
}


@pytest.mark.parametrize("kind", HOSTILE_YAML)
def test_settings_of_any_depth_and_size_are_refused(kind: str, tmp_path: Path) -> None:
    """Ten aliases in a list, ten of that in another, ...: going through them, or merging them,
    takes for ever.
    """
    (tmp_path / "hyperparams.yaml").write_text(HOSTILE_YAML[kind], encoding="latin-1")
    with pytest.raises(ValueError, match=r"hyperparams\.yaml"):
        _speechbrain.read_settings(tmp_path / "hyperparams.yaml")


@pytest.mark.parametrize("depth", [40, 300])
def test_parts_inside_parts_of_any_depth_are_refused(depth: int, tmp_path: Path) -> None:
    """Each level would be a call of a call, until Python's stack ends."""
    part: dict[str, Any] = {"call": "toolkit.backbones.image_resnet.SmallCNN", "args": {"dim": 4}}
    head = {"call": "toolkit.backbones.head.Head", "args": {}}
    for _ in range(depth):
        part = {"call": "toolkit.models.embedder.Joined", "args": {"network": part, "head": head}}
    description = {
        "modality": "image",
        "frontend": {"call": "toolkit.data.pixels.PixelScale", "args": {}},
        "backbone": part,
        "read": {"call": "modalities.image.images.read", "args": {}},
        "features": "raw",
        "similarity": "cosine",
        "step": 1,
    }
    file = tmp_path / "deep.safetensors"
    checkpoint.save(file, {"x": torch.zeros(3)}, description, checkpoint.FORMAT)
    with pytest.raises(ValueError, match="cannot be built"):
        load_model(file)
