"""Files for other runtimes embed there as torch does: sherpa-onnx and OpenVINO themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from likeness.exports import openvino as for_openvino
from likeness.exports import sherpa
from modalities.face import images as faces
from modalities.speaker import audio, folders
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.iresnet import IResNet
from toolkit.backbones.resnet import ResNet34
from toolkit.data.pixels import INSIGHTFACE
from toolkit.models import export
from toolkit.models.embedder import TorchEmbedder
from toolkit.models.loaded import Loaded

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
    sherpa.check(voice_model(**SHERPA), tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=named):
        sherpa.write(voice_model(**SHERPA | changed), tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]


def test_readings_and_kinds_that_sherpa_onnx_lacks_are_refused(tmp_path: Path) -> None:
    model = voice_model(**SHERPA)
    levelled = replace(model, read=partial(audio.read, level_dbfs=-26.0))
    with pytest.raises(ValueError, match="level_dbfs"):
        sherpa.check(levelled, tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="face"):
        sherpa.check(replace(model, modality="face"), tmp_path / "m.onnx")


def test_without_dft_a_graph_gives_the_same_spectra() -> None:
    """The front-end alone, on ONNX Runtime, with and without the operator."""
    import onnxruntime

    class First(torch.nn.Module):
        dim = 16

        def forward(self, features: torch.Tensor, lengths: Any = None) -> torch.Tensor:
            return features[:, 0]

    fbank = KaldiFbank(num_mels=16, cmn=False)
    wave = export.waves(16_000)[-1]
    proto, _ = export.translate(TorchEmbedder(fbank, First()).eval(), wave, "waves")
    before = onnxruntime.InferenceSession(proto.SerializeToString())
    for_openvino.without_dft(proto)
    assert not [node for node in proto.graph.node if node.op_type == "DFT"]
    after = onnxruntime.InferenceSession(proto.SerializeToString())
    a, b = (session.run(None, {"waves": wave.numpy()})[0] for session in (before, after))
    np.testing.assert_allclose(a, b, atol=1e-4)


def test_weights_of_another_program_are_not_replaced(tmp_path: Path) -> None:
    weights = tmp_path / "m.bin"
    weights.write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"m\.bin is there without m\.xml"):
        for_openvino.check(tmp_path / "m.xml")
    assert weights.read_bytes() == b"mine"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_kill_leaves_no_network_with_the_weights_of_another(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("remove", "move"):
        do = getattr(for_openvino, name)

        def counted(*paths: Path, name: str = name, do: Callable[..., None] = do) -> None:
            steps.append(name)
            if len(steps) == number:
                raise KeyboardInterrupt
            do(*paths)

        monkeypatch.setattr(for_openvino, name, counted)
    (tmp_path / "new").mkdir()
    for folder, text in ((tmp_path, "old"), (tmp_path / "new", "new")):
        for suffix in (".xml", ".bin"):
            (folder / f"m{suffix}").write_text(text)
    new = tmp_path / "new"
    with pytest.raises(KeyboardInterrupt):
        for_openvino._replace(new / "m.xml", new / "m.bin", tmp_path / "m.xml")
    found = {path.suffix: path.read_text() for path in tmp_path.glob("m.*")}
    assert ".xml" not in found or len(set(found.values())) == 1


@pytest.mark.slow  # an export
@pytest.mark.parametrize("kind", ["speaker", "face"])
def test_openvino_gives_our_embeddings(kind: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    model = voice_model(num_mels=16)
    if kind == "face":
        frontend = INSIGHTFACE()
        network = IResNet(3, dim=8, width=4, blocks=(1, 1, 1, 1), image_size=112)
        embedder = TorchEmbedder(frontend, network).train()
        embedder(torch.rand(8, 3, 112, 112) * 255)  # the batch norms learn what they normalise
        read = partial(faces.read, size=(112, 112))
        model = Loaded(embedder.eval(), read, "face", "cosine", "e" * 64, 7)
    out = tmp_path / "m.xml"
    assert for_openvino.write(model, out) < 1e-4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bin", "m.xml"]
    read_again = openvino.Core().read_model(out)
    described = json.loads(read_again.get_rt_info(["likeness"]).astype(str))
    assert described["digest"] == model.digest
    inputs = export.inputs_of(model)
    compiled = openvino.Core().compile_model(read_again, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    batch = inputs.batches[-1][:2]
    with torch.no_grad():
        ours = model.embedder(batch).numpy()
    theirs = compiled({inputs.name: batch.numpy()})[0]
    np.testing.assert_allclose(theirs, ours, atol=1e-4 * np.linalg.norm(ours))
