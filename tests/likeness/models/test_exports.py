"""Smaller files and the layout of sherpa-onnx."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from likeness.data import Item, audio, folders
from likeness.modalities.speaker.features import KaldiFbank
from likeness.models import _sherpa
from likeness.models.load import load_named
from likeness.models.run import load_model
from likeness.toolkit.backbones.resnet import ResNet
from likeness.toolkit.models import checkpoint, export
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded
from tests import tiny
from tests.scripts import run_command

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


@pytest.mark.slow  # three exports
def test_smaller_files_keep_the_front_end(checkpoint_file, voices, tmp_path):
    plain = load_model(checkpoint_file)
    files = {name: tmp_path / f"{name}.onnx" for name in ("float32", "float16", "int8")}
    export.export(plain, files["float32"])
    export.export(plain, files["float16"], precision="float16")
    items = folders.items(voices, split="all")
    calibration = [*items[:3], Item("absent", tmp_path / "absent.wav", "ann")]
    with pytest.warns(UserWarning, match=r"cannot be read"):
        export.export(plain, files["int8"], precision="int8", calibration=calibration)
    sizes = {name: file.stat().st_size for name, file in files.items()}
    assert sizes["int8"] < sizes["float16"] < sizes["float32"]
    loaded = {name: load_named(str(file)) for name, file in files.items()}
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


def test_a_list_for_calibration_starts_from_the_root(checkpoint_file, tmp_path, capsys):
    (tmp_path / "items.txt").write_text("absent.wav\n")
    root = tmp_path / "voices"
    root.mkdir()
    words = ("export", checkpoint_file, "--out", tmp_path / "m.onnx", "--precision", "int8")
    assert run_command(*words, "--calibrate", tmp_path / "items.txt", "--root", root) == 2
    assert "voices/absent.wav" in capsys.readouterr().err


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
def test_sherpa_onnx_gives_our_embeddings(settings, voices, tmp_path):
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    model, out = voice_model(**SHERPA, **settings), tmp_path / "m.onnx"
    distance, num = _sherpa.write(model, out)
    assert distance < 1e-6
    assert num == 15
    stated = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert stated["sample_rate"] == "16000"
    assert stated["normalize_samples"] == ("1" if settings else "0")
    with pytest.raises(ValueError, match="give the run that it was made of"):
        load_named(str(out))
    stated = sherpa_onnx.SpeakerEmbeddingExtractorConfig(model=str(out), num_threads=1)
    extractor = sherpa_onnx.SpeakerEmbeddingExtractor(stated)
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
        *[({"num_mels": 40}, "num_mels"), ({"window": "hamming"}, "window")],
        *[({"high_hz": 7000.0}, "upper edge"), ({"snip_edges": True}, "snip_edges")],
        ({"scale": 2.0}, "scale"),
    ],
)
def test_filterbanks_that_sherpa_onnx_lacks_are_refused(changed, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        _sherpa.write(voice_model(**SHERPA | changed), tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]
    levelled = replace(voice_model(**SHERPA), read=partial(audio.read, level_dbfs=-26.0))
    with pytest.raises(ValueError, match="level_dbfs"):
        _sherpa.check_sherpa(levelled)
