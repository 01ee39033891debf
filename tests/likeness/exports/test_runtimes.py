"""Files for sherpa-onnx embed there as torch does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from likeness.exports import sherpa
from likeness.modalities import folders
from likeness.modalities.speaker import audio
from likeness.modalities.speaker.features import KaldiFbank
from likeness.toolkit.backbones.resnet import ResNet34
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

SHERPA = {"window": "povey", "high_hz": -400.0, "snip_edges": False}


def voice_model(**settings: Any) -> Loaded:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fbank = KaldiFbank(**settings)
    network = ResNet34(fbank.dim, dim=8, width=4, blocks=(1, 1, 1, 1))
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
