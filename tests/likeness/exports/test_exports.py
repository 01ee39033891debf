"""Smaller files and the layout of sherpa-onnx."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from likeness.eval.formats.trials import read_trials
from likeness.eval.verification import eer
from likeness.exports import sherpa
from likeness.exports.cost import OnTrials, measure
from likeness.modalities import folders
from likeness.modalities.embedding.rows import Vectors
from likeness.modalities.speaker import audio
from likeness.modalities.speaker.features import KaldiFbank
from likeness.models.load import load
from likeness.models.run import load_model
from likeness.scoring import score
from likeness.toolkit.backbones.resnet import ResNet
from likeness.toolkit.data.items import Item
from likeness.toolkit.models import checkpoint, export
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded
from tests import tiny
from tests.scripts import printed, run_command

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def checkpoint_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ResNet whose batch norms have seen noise, as a checkpoint."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("model") / "last.safetensors"
    frontend = partial(KaldiFbank, num_mels=16)
    backbone = partial(ResNet, dim=8, width=4, blocks=(1, 1, 1, 1))
    embedder = TorchEmbedder(frontend(), backbone(16)).train()
    with torch.no_grad():
        for batch in export.waves(16_000):
            if len(batch) > 1:
                embedder(batch)
    recipe = replace(tiny.BASE, frontend=frontend, backbone=backbone)
    checkpoint.save_model(path, embedder.eval(), recipe, similarity="cosine", step=1, metrics={})
    return path


def lists(voices: Path, folder: Path) -> tuple[Path, Path]:
    """The items of the voices, and all of their trials."""
    items = folders.items(voices, split="all")
    listed, trials = folder / "items.txt", folder / "trials.txt"
    listed.write_text("".join(f"{item.id} {item.path} {item.label}\n" for item in items))
    pairs = ((a, b) for i, a in enumerate(items) for b in items[i + 1 :])
    trials.write_text("".join(f"{int(a.label == b.label)} {a.id} {b.id}\n" for a, b in pairs))
    return listed, trials


@pytest.mark.slow  # three exports
def test_smaller_files_keep_the_front_end_and_state_what_they_are(
    checkpoint_file: Path, voices: Path, tmp_path: Path
) -> None:
    plain = load_model(checkpoint_file)
    files = {name: tmp_path / f"{name}.onnx" for name in ("float32", "float16", "int8")}
    export.export(plain, files["float32"])
    export.export(plain, files["float16"], smaller=export.Smaller("float16"))
    items = folders.items(voices, split="all")
    export.export(plain, files["int8"], smaller=export.Smaller("int8", items[:3]))
    before = files["float16"].read_bytes()

    def refuse(file: Path) -> dict[str, Any]:
        assert file.read_bytes() == before
        raise ValueError("too much")

    with pytest.raises(ValueError, match="too much"):
        export.export(plain, files["float16"], smaller=export.Smaller("float16", measure=refuse))
    assert files["float16"].read_bytes() == before
    sizes = {name: file.stat().st_size for name, file in files.items()}
    assert sizes["int8"] < sizes["float16"] < sizes["float32"]
    loaded = {name: load(str(file)) for name, file in files.items()}
    assert loaded["float32"].digest == plain.digest
    assert len({model.digest for model in loaded.values()}) == 3
    # the mel bank is the only table of 257 rows
    for file in files.values():
        tables = onnx.load(file).graph.initializer
        (bank,) = (tensor for tensor in tables if tuple(tensor.dims) == (257, 16))
        mel = KaldiFbank(num_mels=16).mel.numpy()
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(bank), mel, strict=True)
    units = [embed(each.embedder, items, each.read)[0].unit() for each in loaded.values()]
    for other, most, least in ((units[1], 1e-5, 0.0), (units[2], 0.05, 1e-7)):
        distance = (1 - (units[0].astype(float) * other).sum(axis=1)).max()
        assert least <= distance < most


@pytest.mark.slow  # two exports
def test_the_cost_is_that_of_scores_made_apart_and_too_much_of_it_is_refused(
    checkpoint_file: Path, voices: Path, tmp_path: Path
) -> None:
    listed, trials = lists(voices, tmp_path)
    out = tmp_path / "small.onnx"
    words = ["export", checkpoint_file, "--out", out, "--precision", "int8", "--trials", trials]
    words += ["--items", listed, "--calibrate", listed, "--far", 0.1]
    assert "EER" in printed(*words, "--max-loss", 100)
    properties = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    stated = json.loads(properties["likeness"])
    assert stated["precision"] == "int8"
    results = stated["cost"]["results"]
    values = {(result["system"], result["metric"]): result["value"] for result in results}
    assert {"eer", "tar_at_far(0.1)"} <= {metric for _, metric in values}
    items = folders.items(voices, split="all")
    for side, model in (("float32", load_model(checkpoint_file)), ("smaller", load(str(out)))):
        embeddings, bad = embed(model.embedder, items, model.read, meta=model.meta)
        assert not bad
        scores = score(read_trials(trials), embeddings).scores
        assert values[side, "eer"] == pytest.approx(eer(scores.targets, scores.nontargets))
    # Beside a model that knows the speakers, this one is worse by its whole EER.
    speakers = sorted({item.label for item in items if item.label})

    def read(item: Item) -> np.ndarray[Any, Any]:
        return np.eye(len(speakers), dtype=np.float32)[speakers.index(str(item.label))]

    embedder = TorchEmbedder(Vectors(dim=len(speakers)), Same())
    perfect = replace(load_model(checkpoint_file), embedder=embedder, read=read)
    rise = 100 * values["smaller", "eer"]
    assert rise > 1
    about = OnTrials(read_trials(trials), items, "all pairs", far=0.1, max_loss=rise - 0.01)
    with pytest.raises(ValueError, match="percentage points"):
        measure(perfect, out, about)
    paired = measure(perfect, out, replace(about, max_loss=rise + 0.01)).paired
    assert paired.over == "subjects"
    difference = paired.differences["smaller", "eer"]
    assert difference.interval[0] < rise / 100 < difference.interval[1]


class Same(nn.Module):
    """A backbone that gives what it gets."""

    dim = 8

    def forward(self, features: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        return features


def test_a_list_for_calibration_starts_from_the_root(
    checkpoint_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.txt").write_text("absent.wav\n")
    root = tmp_path / "voices"
    root.mkdir()
    words = ("export", checkpoint_file, "--out", tmp_path / "m.onnx", "--precision", "int8")
    assert run_command(*words, "--calibrate", tmp_path / "items.txt", "--root", root) == 2
    assert "voices/absent.wav" in capsys.readouterr().err


pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

SHERPA = {"window": "povey", "high_hz": -400.0, "snip_edges": False}


def voice_model(**settings: Any) -> Loaded:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fbank = KaldiFbank(**settings)
    network = ResNet(fbank.dim, dim=8, width=4, blocks=(1, 1, 1, 1))
    embedder = TorchEmbedder(fbank, network).eval()
    return Loaded(embedder, audio.read, "speaker", "cosine", "d" * 64, 7)


@pytest.mark.slow  # an export
@pytest.mark.parametrize("settings", [{}, {"scale": 1.0, "cmn": False}], ids=["cmn", "plain"])
def test_sherpa_onnx_gives_our_embeddings(
    settings: dict[str, Any], voices: Path, tmp_path: Path
) -> None:
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    model, out = voice_model(**SHERPA, **settings), tmp_path / "m.onnx"
    distance, num = sherpa.write(model, out)
    assert distance < 1e-6
    assert num == 15
    stated = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert stated["sample_rate"] == "16000"
    assert stated["normalize_samples"] == ("1" if settings else "0")
    extractor = sherpa_onnx.SpeakerEmbeddingExtractor(
        sherpa_onnx.SpeakerEmbeddingExtractorConfig(model=str(out), num_threads=1)
    )
    assert extractor.dim == 8
    for item in folders.items(voices, split="all")[:5]:
        wave = audio.read(item)
        stream = extractor.create_stream()
        stream.accept_waveform(16_000, wave)
        stream.input_finished()
        theirs = np.array(extractor.compute(stream))
        with torch.no_grad():
            ours = model.embedder(torch.from_numpy(wave)[None])[0].numpy()
        assert theirs @ ours / np.linalg.norm(theirs) / np.linalg.norm(ours) > 1 - 1e-5


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"num_mels": 40}, "num_mels"),
        ({"window": "hamming"}, "window"),
        ({"high_hz": 7000.0}, "upper edge"),
        ({"snip_edges": True}, "snip_edges"),
        ({"scale": 2.0}, "scale"),
    ],
)
def test_filterbanks_that_sherpa_onnx_lacks_are_refused(
    changed: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=named):
        sherpa.write(voice_model(**SHERPA | changed), tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]
    levelled = replace(voice_model(**SHERPA), read=partial(audio.read, level_dbfs=-26.0))
    with pytest.raises(ValueError, match="level_dbfs"):
        sherpa.check(levelled)
