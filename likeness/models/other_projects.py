"""Models of other projects, whose front-ends are in torch: SpeechBrain, WeSpeaker, InsightFace and
.onnx networks that `likeness export` did not write.

likeness/models/load.py says what each of them is called, and what is read of their files.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eval.errors import LikenessError, first_line
from eval.formats.provenance import digest, sha256
from likeness.models import arcface_torch, insightface, speechbrain, wespeaker
from likeness.models.filterbanks import SETTINGS, Frontend
from modalities.face import images
from modalities.speaker import audio
from modalities.speaker.features import KaldiFbank, RawWave
from modalities.speaker.speechbrain_fbank import SpeechBrainFbank
from toolkit.backbones.weights import read_weights
from toolkit.console import say
from toolkit.data.pixels import INSIGHTFACE, PixelScale
from toolkit.models import onnx
from toolkit.models.embedder import TorchEmbedder
from toolkit.models.loaded import Loaded
from toolkit.models.parts import describe


def _speaker(
    frontend: nn.Module, backbone: nn.Module, summed: str, *, rate_hz: int = 16_000
) -> Loaded:
    """Return a model of speech that reads audio at this rate and is scored by the cosine."""
    read = partial(audio.read, rate_hz=rate_hz)
    return Loaded(TorchEmbedder(frontend, backbone).eval(), read, "speaker", "cosine", summed, 0)


def _summed(path: Path, frontend: Frontend) -> str:
    """Return the digest of a model whose file does not state its front-end.

    Embeddings of two front-ends do not compare, so the front-end is part of the digest. With the
    default front-end it is the digest of the file alone.
    """
    return sha256(path) if frontend == "wespeaker" else digest([sha256(path), frontend])


def _load_state(path: Path) -> dict[str, Tensor]:
    """Read a pickled state dict, of which only tensors are taken."""
    if not path.is_file():
        raise LikenessError(
            f"{path} does not exist; give the folder or the file of the model's weights"
        )
    return read_weights(path)


def load_speechbrain(source: str) -> Loaded:
    yaml, weights = speechbrain.find_files(source)
    settings, backbone = speechbrain.read_settings(yaml)
    speechbrain.fill(backbone.network, _load_state(weights), str(weights))
    summed = digest([sha256(yaml), sha256(weights)])
    rate_hz = settings.get("rate_hz", 16_000)
    return _speaker(SpeechBrainFbank(**settings), backbone, summed, rate_hz=rate_hz)


def load_wespeaker(path: Path, frontend: Frontend) -> Loaded:
    file = path / "avg_model.pt" if path.is_dir() else path
    backbone, num_mels, part = wespeaker.network(file, _load_state(file))
    fbank = partial(KaldiFbank, num_mels=num_mels, **SETTINGS[frontend])
    loaded = _speaker(fbank(), backbone, _summed(file, frontend))
    parts = {"frontend": fbank, "backbone": part, "read": loaded.read}
    return replace(loaded, parts={name: describe(value, name) for name, value in parts.items()})


class OnnxNetwork(nn.Module):
    """A network in ONNX Runtime behind the backbone signature.

    It takes no lengths, so the batches of `embed` hold equal lengths only.
    """

    pads_exactly = False

    def __init__(self, session: Any, in_dim: int, dim: int):
        super().__init__()
        self.session, self.in_dim, self.dim = session, in_dim, dim
        self.input = session.get_inputs()[0].name
        self.one_by_one = session.get_inputs()[0].shape[0] == 1
        self.dtype = np.uint8 if session.get_inputs()[0].type == "tensor(uint8)" else np.float32

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim).

        Args:
            features: (B, T, in_dim), where in_dim is 1 for waves, or images (B, in_dim, H, W).
            lengths: Not used.
        """
        values = features.float().cpu().numpy().astype(self.dtype, copy=False)
        values = values[..., 0] if len(self.session.get_inputs()[0].shape) == 2 else values
        groups = values[:, None] if self.one_by_one else [values]
        rows = [
            torch.from_numpy(self.session.run(None, {self.input: group})[0]).reshape(len(group), -1)
            for group in groups
        ]
        return torch.cat(rows).to(features.device)


def _try_out(session: Any, path: Path, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return what a network gives for one random input of this shape: (1, dim) or (1, 1, dim)."""
    probe = torch.zeros(shape).normal_(generator=torch.Generator().manual_seed(0)).numpy()
    try:
        value = session.get_inputs()[0]
        if value.type == "tensor(uint8)":
            probe = probe.astype(np.uint8)
        z: np.ndarray[Any, Any] = session.run(None, {value.name: probe})[0]
    except Exception as error:  # onnxruntime's exceptions have no base but Exception
        raise LikenessError(
            f"{path}: it does not run on an input of {shape} ({first_line(error)})"
        ) from None
    if z.ndim not in (2, 3) or z.shape[0] != 1:
        raise LikenessError(f"{path}: it gives {z.shape} for one input; (1, dim) is needed")
    return z


def load_insightface(source: str) -> Loaded:
    if insightface.is_state_dict(source):
        return _load_arcface_torch(Path(source))
    pack = insightface.find(source)
    path, (size, mean, std, bgr) = pack.recognition, pack.pixels
    session = onnx.open_session(path)
    if session.text is not None:
        raise LikenessError(
            f"{path}: this is a file of likeness export, whose graph scales the pixels itself; "
            f"give it without insightface:, as {path}"
        )
    value = session.get_inputs()[0]
    takes_bytes = value.type == "tensor(uint8)" and pack.stated and (mean, std) == (0.0, 1.0)
    if value.type != "tensor(float)" and not takes_bytes:
        raise LikenessError(
            f"{path}: its input is {value.name} {value.type} {value.shape}; floats are needed"
        )
    network = OnnxNetwork(session, 3, _try_out(session, path, (1, 3, *size)).size)
    read = partial(images.read, size=size)
    # Unless a manifest or the user states the pixels, they follow from the file, whose sum is then
    # enough.
    pixels = f"{mean} {std}" if pack.stated else pack.named
    summed = digest([sha256(path), pixels]) if pixels else sha256(path)
    insightface.say_licence(pack)
    frontend = PixelScale((mean,) * 3, (std,) * 3, scale=1.0, bgr=bgr)
    return Loaded(TorchEmbedder(frontend, network).eval(), read, "face", "cosine", summed, 0)


def _load_arcface_torch(path: Path) -> Loaded:
    network, summed = arcface_torch.read_network(path), sha256(path)
    size = network.image_size
    say(f"{path}: {size} x {size} RGB, (x - 127.5) / 127.5; {insightface.LICENCE}", error=True)
    read = partial(images.read, size=(size, size))
    return Loaded(TorchEmbedder(INSIGHTFACE(), network).eval(), read, "face", "cosine", summed, 0)


def load_onnx(path: Path, frontend: Frontend) -> Loaded:
    session, summed = onnx.open_session(path), sha256(path)
    probe: tuple[int, ...]
    front: nn.Module
    inputs, outputs = session.get_inputs(), session.get_outputs()
    stated = "; ".join(f"{value.name} {value.type} {value.shape}" for value in inputs)
    if (
        len(inputs) != 1
        or inputs[0].type != "tensor(float)"
        or len(inputs[0].shape) not in (2, 3)
        or not outputs
    ):
        image = (
            ": a network over images is given as insightface:FILE.onnx"
            if len(inputs) == 1 and len(inputs[0].shape) == 4
            else ""
        )
        raise LikenessError(
            f"{path}: its inputs are {stated}; one input of floats is needed, filterbanks "
            f"(B, T, F) or waves (B, S){image}"
        )
    if len(inputs[0].shape) == 2:
        front, in_dim, probe = RawWave(), 1, (1, 16_000)
    else:
        in_dim = inputs[0].shape[2] if isinstance(inputs[0].shape[2], int) else 80
        front, probe = KaldiFbank(num_mels=in_dim, **SETTINGS[frontend]), (1, 200, in_dim)
        summed = _summed(path, frontend)
    if isinstance(inputs[0].shape[1], int):
        raise LikenessError(
            f"{path}: its input {stated} has a fixed length; export it with a dynamic one, for "
            "recordings of any length"
        )
    network = OnnxNetwork(session, in_dim, _try_out(session, path, probe).size)
    return _speaker(front, network, summed)
