"""From the command line: an exported model as MODEL, nothing beside it, and its embeddings in
Parquet and HDF5 through score, identify, retrieve.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from eval.formats import embeddings
from likeness.cli import main
from modalities import folders
from modalities.speaker import audio
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.statistics import OrderStatistics
from toolkit.models import export
from toolkit.models.embed import embed
from toolkit.models.embedder import TorchEmbedder
from toolkit.models.loaded import Loaded

for package in ("onnxruntime", "onnxscript", "pyarrow", "h5py"):
    pytest.importorskip(package)


def likeness(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


@pytest.mark.slow  # exports, and runs 17 commands: 20 seconds
def test_an_export_is_a_model_and_a_table_is_embeddings(
    voices: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = Loaded(
        TorchEmbedder(KaldiFbank(16), partial(OrderStatistics, dim=8)(16)).eval(),
        audio.read,
        "speaker",
        "simple:0.3",
        "d" * 64,
        1,
    )
    export.export(model, tmp_path / "m.onnx")
    items = folders.items(voices, split="all")
    Path("items").write_text("".join(f"{item.id}\t{item.path}\n" for item in items))
    Path("trials").write_text(
        "".join(
            f"{a.id} {b.id} {int(a.label == b.label)}\n"
            for a in items
            for b in items
            if a.id < b.id
        )
    )
    scores, actual = set(), set()
    for out in ("e.parquet", "e.h5", "e.npz"):
        assert likeness("embed", "--model", "m.onnx", "--items", "items", "--out", out) == 0
        assert likeness("score", "--trials", "trials", "--embeddings", out, "--out", "scores") == 0
        scores.add(Path("scores").read_bytes())
        assert likeness("retrieve", "--embeddings", out, "--json", "r.json", "--resamples", 0) == 0
        both = ("--gallery", out, "--probes", out)
        assert likeness("identify", *both, "--json", "i.json", "--resamples", 0) == 0
        actual.add(
            json.dumps(
                [
                    [result["value"] for result in json.loads(Path(name).read_text())["results"]]
                    for name in ("r.json", "i.json")
                ]
            )
        )
        assert all(
            len(value) == 64 for value in json.loads(Path("i.json").read_text())["inputs"].values()
        )
    assert len(scores) == len(actual) == 1, "the same, whatever the format"
    embedded, (torch_made, _) = (
        embeddings.read("e.parquet"),
        embed(model.embedder, items, model.read),
    )
    assert embedded.ids == torch_made.ids
    assert dict(embedded.meta) == model.meta
    np.testing.assert_allclose(embedded.matrix, torch_made.matrix, rtol=1e-3, atol=1e-4)
    assert not list(tmp_path.glob("*.shards"))
    assert (
        likeness("verify", items[0].path, items[1].path, "--model", "m.onnx", "--threshold", 0.1)
        == 0
    )
    capsys.readouterr()
    assert (
        likeness("score", "--trials", "trials", "--embeddings", "none.npz", "--out", "scores") == 2
    )
    assert "none" in capsys.readouterr().err
