"""Models from elsewhere behind the one way of embedding: what MODEL means on the command line.

    load("runs/an4")
        a run directory or a .safetensors checkpoint of Likeness
    load("speechbrain:FOLDER")
        a local folder of a SpeechBrain speaker model (hyperparams.yaml, embedding_model.ckpt)
    load("speechbrain:speechbrain/spkrec-ecapa-voxceleb")
        the same from the Hugging Face hub, which is asked for by writing so
    load("wespeaker:FOLDER_OR_FILE.pt")
        a WeSpeaker checkpoint (avg_model.pt): ResNet, ECAPA-TDNN, CAM++ or x-vector
    load("insightface:FILE_OR_FOLDER")
        a face network of InsightFace: a recognition .onnx file, or an unpacked pack such as
        buffalo_l
    load("model.onnx")
        a file of `likeness export`, of any modality; else a speaker network: filterbanks (B, T, F)
        or waves (B, S) -> (B, dim)

The weights that InsightFace publishes are for non-commercial research only; loading them says so.
Nothing in these files is executed: SpeechBrain's YAML (which it runs as code: HyperPyYAML's !new:
and !apply:) is read as plain data, state dicts by toolkit.backbones.pickled. Front-ends come from
the modality by name, as with a checkpoint. Foreign models are scored by the cosine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from eval.formats.provenance import digest, sha256
from eval.types import name_first
from likeness.models import insightface, speechbrain
from likeness.models import onnx as exported
from likeness.models.run import load_model
from modalities.face import align, images
from modalities.speaker import audio, long
from modalities.speaker.features import KaldiFbank, RawWave
from modalities.speaker.speechbrain_fbank import SpeechBrainFbank
from toolkit.backbones.campplus import CAMPPlus
from toolkit.backbones.ecapa import WeSpeakerECAPA
from toolkit.backbones.resnet import ResNet
from toolkit.backbones.weights import load_wespeaker, read_weights
from toolkit.backbones.xvector import XVector
from toolkit.data.pixels import PixelScale
from toolkit.models import onnx
from toolkit.models.checkpoint import Loaded
from toolkit.models.embed import TorchEmbedder

Frontend = Literal["wespeaker", "3dspeaker"]
_MAX_MELS = 1024
_KALDI: dict[
    str, dict[str, Any]
    # as WESPEAKER_FBANK and THREED_SPEAKER_FBANK in modalities/speaker/features.py; dither is for
    # training only
] = {
    "wespeaker": {"window": "hamming", "scale": 32768.0},
    "3dspeaker": {"window": "povey", "scale": 1.0},
}


def load(model: str, *, frontend: Frontend = "wespeaker") -> Loaded:
    """MODEL -> an embedder with its reading, modality, similarity and digest.

    frontend: what an .onnx network over filterbanks and a `wespeaker:` state dict were trained
    with: "wespeaker" (Hamming window, int16 scale) or "3dspeaker" (Povey window, [-1, 1]); neither
    file says it. Other kinds of models know their front-end. A face model reads aligned crops;
    `with_detector` makes it read photographs.
    ValueError for a file of another kind, sizes that contradict the weights, and an architecture
    that is not known; ImportError names the extra to install.
    """
    if frontend not in get_args(Frontend):
        raise ValueError(f"front-end {frontend!r}: must be one of {', '.join(get_args(Frontend))}")
    kind, colon, source = model.partition(":")
    if colon and kind == "speechbrain":
        return _load_speechbrain(source)
    if colon and kind == "wespeaker":
        return _load_wespeaker(Path(source), frontend)
    if colon and kind == "insightface":
        return _load_insightface(source)
    if colon and kind.isidentifier() and len(kind) > 1 and not Path(model).exists():
        raise ValueError(
            f"model {model!r}: there is no kind {kind!r}; write speechbrain:SOURCE, "
            "wespeaker:FILE.pt, insightface:PATH, FILE.onnx, a checkpoint or a run"
            " directory"
        )
    if Path(model).suffix.lower() == ".onnx":
        return exported.load(Path(model)) or _load_onnx(Path(model), frontend)
    return load_model(Path(model))


def in_parts(
    model: Loaded,
    *,
    crops: int = 0,
    crop_seconds: float = 4.0,
    chunk_seconds: float = 0.0,
    only_speech: bool = False,
) -> Loaded:
    """The model reading its items in crops, in chunks or without pauses (see
    modalities/speaker/long.py); its `settings` say so in the embeddings' meta.

    ValueError for a modality without such reading.
    """
    if not (crops or chunk_seconds or only_speech):
        return model
    if model.modality != "speaker":
        raise ValueError(
            "crops, chunks and --only-speech are for speech; this is a model of modality "
            f"{model.modality!r}: leave them out"
        )
    if crops and chunk_seconds:
        raise ValueError(
            f"--crops {crops} and --chunk-seconds {chunk_seconds:g} exclude each other; choose one "
            "of them"
        )
    if crop_seconds < 0.1 or 0 < chunk_seconds < 1.0:
        raise ValueError(
            f"--crop-seconds {crop_seconds:g}, --chunk-seconds {chunk_seconds:g}: crops of at "
            "least 0.1 s and chunks of at least 1 s are allowed"
        )
    given = model.read.keywords if isinstance(model.read, partial) else {}
    known = {key: value for key, value in given.items() if key in ("rate_hz", "min_seconds")}
    read = partial(
        long.read,
        crops=crops,
        crop_seconds=crop_seconds,
        chunk_seconds=chunk_seconds,
        only_speech=only_speech,
        **known,
    )
    said = {
        "crops": f"{crops} x {crop_seconds:g} s, mean" if crops else "",
        "chunks": f"at most {chunk_seconds:g} s, mean by length" if chunk_seconds else "",
    }
    said["pauses"] = "left out by energy" if only_speech else ""
    settings = {key: value for key, value in said.items() if value}
    return replace(model, read=read, settings=settings)


def find_detector(model: str) -> Path | None:
    """The SCRFD detector that a pack, `insightface:FOLDER`, brings along; None for every other
    MODEL, also for one file of a pack.
    """
    kind, _, source = model.partition(":")
    return insightface.find(source).detector if kind == "insightface" else None


def aligned_size(model: Loaded) -> tuple[int, int]:
    """Height and width of the faces that a model reads, in pixels.

    ValueError, before any work, where faces cannot be aligned to that.
    """
    given = model.read.keywords if isinstance(model.read, partial) else {}
    size = given.get("size", (112, 112))  # images.read's own default
    height, width = (
        (size, given.get("width") or size) if isinstance(size, int) else size
    )  # a height alone is what modalities.face.align.read takes
    try:
        align.check(height, width)
    except ValueError:
        raise ValueError(
            f"the model takes faces of {height} x {width}, but they are aligned to heights that "
            "are multiples of 112 or 128, and to widths at most as large and"
            " less by an even number; take such a model, or give this one crops that fit it"
        ) from None
    return height, width


def with_detector(model: Loaded, detector: Path | None) -> Loaded:
    """The face model reading photographs: the face that InsightFace takes, the largest near the
    centre, is found by an SCRFD .onnx file and aligned to the model's size (modalities.face.align).
    Its `settings` say so. None: the model as it is.

    ValueError: a model of another modality or of faces of another size, a file that is no SCRFD
    detector with landmarks.
    """
    if detector is None:
        return model
    if model.modality != "face":
        raise ValueError(
            f"--detector {detector} finds faces, but this is a model of modality "
            f"{model.modality!r}: leave it out"
        )
    insightface.check_detector(detector)
    height, width = aligned_size(model)
    read = partial(align.read, detector=str(detector), size=height, width=width, choose="central")
    return replace(
        model,
        read=read,
        settings={
            **model.settings,
            "faces": f"central, aligned to {height} x {width}, detector {sha256(detector)[:16]}",
        },
    )


def _speaker(
    frontend: nn.Module, backbone: nn.Module, summed: str, *, rate_hz: int = 16_000
) -> Loaded:
    read = partial(audio.read, rate_hz=rate_hz)
    return Loaded(TorchEmbedder(frontend, backbone).eval(), read, "speaker", "cosine", summed, 0)


def _summed(path: Path, frontend: Frontend) -> str:
    """The digest of a model whose file does not say its front-end: embeddings of two front-ends do
    not compare. The default's is that of the file alone.
    """
    return sha256(path) if frontend == "wespeaker" else digest([sha256(path), frontend])


def _load_state(path: Path) -> dict[str, Tensor]:
    """A pickled state dict, of which only tensors are taken."""
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist; give the folder or the file of the model's weights"
        )
    return read_weights(path)


def _load_speechbrain(source: str) -> Loaded:
    yaml, weights = speechbrain.find_files(source)
    settings, backbone = speechbrain.read_settings(yaml)
    speechbrain.fill(backbone.network, _load_state(weights), str(weights))
    frontend = SpeechBrainFbank(**settings)
    return _speaker(
        frontend,
        backbone,
        digest([sha256(yaml), sha256(weights)]),
        rate_hz=settings.get("rate_hz", 16_000),
    )


def _load_wespeaker(path: Path, frontend: Frontend) -> Loaded:
    """The sizes of the network are those of its weights: neither YAML nor argument is needed."""
    file = path / "avg_model.pt" if path.is_dir() else path
    state = {name.removeprefix("module."): value for name, value in _load_state(file).items()}
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    try:
        with torch.device(
            "meta"
            # without memory: what the sizes of a few tensors ask for may be much more than the file
            # holds
        ):
            backbone, num_mels = _wespeaker_network(shapes)
        asked, there = (
            sum(one.numel() for one in backbone.parameters()),
            sum(one.numel() for one in state.values()),
        )
        if asked > there or not 1 <= num_mels <= _MAX_MELS:
            raise ValueError(
                f"{file}: weights do not fit: their sizes are of a network over {num_mels} bands "
                f"with {asked} weights, and the file has {there}; copy it again"
            )
        backbone, num_mels = _wespeaker_network(shapes)
    except (KeyError, IndexError, ZeroDivisionError):
        raise ValueError(
            f"{file}: its {len(state)} tensors ({name_first(state)}) are none of ResNet, "
            "ECAPA-TDNN, CAM++ or x-vector as WeSpeaker names them"
        ) from None
    try:
        load_wespeaker(backbone, state)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return _speaker(
        KaldiFbank(num_mels=num_mels, **_KALDI[frontend]), backbone, _summed(file, frontend)
    )


def _wespeaker_network(shapes: Mapping[str, tuple[int, ...]]) -> tuple[nn.Module, int]:
    """The network of these shapes and its number of bands. KeyError where it is another one."""

    def count(pattern: str) -> int:
        return len({found[0] for name in shapes if (found := re.match(pattern, name))})

    if "layer1.conv.weight" in shapes:  # ECAPA-TDNN
        channels, num_mels, _ = shapes["layer1.conv.weight"]
        scale = channels // shapes["layer2.se_res2block.1.convs.0.weight"][0]
        if scale != 1 + count(r"layer2\.se_res2block\.1\.convs\.\d+\."):
            raise KeyError(scale)
        pooled, hidden = shapes["conv.weight"][0], shapes["pool.linear1.weight"][1]
        return WeSpeakerECAPA(
            num_mels,
            dim=shapes["linear.weight"][0],
            channels=channels,
            pooled=pooled,
            res2net_scale=scale,
            se_channels=shapes["layer2.se_res2block.3.linear1.weight"][0],
            global_context=hidden == 3 * pooled,
            normalise="bn2.weight" in shapes,
        ), num_mels
    if "frame_1.conv_1d.weight" in shapes:
        channels, num_mels, _ = shapes["frame_1.conv_1d.weight"]
        pooled, two_layers = shapes["frame_5.conv_1d.weight"][0], "seg_2.weight" in shapes
        return XVector(
            num_mels,
            dim=shapes["seg_1.weight"][0],
            channels=channels,
            pooled=pooled,
            two_layers=two_layers,
        ), num_mels
    if "xvector.dense.linear.weight" in shapes:  # CAM++, whose head leaves an eighth of the bands
        num_mels = 8 * shapes["xvector.tdnn.linear.weight"][1] // shapes["head.conv1.weight"][0]
        return CAMPPlus(num_mels, dim=shapes["xvector.dense.linear.weight"][0]), num_mels
    width, blocks = (
        shapes["conv1.weight"][0],
        tuple(count(rf"layer{stage}\.\d+\.") for stage in (1, 2, 3, 4)),
    )
    bottleneck = "layer1.0.conv3.weight" in shapes
    dim, size = shapes["seg_1.weight"]
    if any(name.startswith("pool.") for name in shapes):
        raise ValueError(
            "a ResNet with attentive pooling; only TSTP, the pooling of WeSpeaker's recipes for "
            "ResNet, is read"
        )
    num_mels = 8 * size // (2 * width * 8 * (4 if bottleneck else 1))
    depth, two_layers = 50 if bottleneck else 34, "seg_2.weight" in shapes
    return ResNet(
        num_mels,
        dim=dim,
        width=width,
        depth=depth,
        blocks=cast(tuple[int, int, int, int], blocks),
        two_layers=two_layers,
    ), num_mels


class OnnxNetwork(nn.Module):
    """A network in ONNX Runtime behind the backbone signature.

    It knows no lengths, so embedding batches hold equal lengths only.
    """

    pads_exactly = False

    def __init__(self, session: Any, in_dim: int, dim: int):
        super().__init__()
        self.session, self.in_dim, self.dim = session, in_dim, dim
        self.input = session.get_inputs()[0].name
        fixed = session.get_inputs()[0].shape[0]
        self.one_by_one = fixed == 1
        self.dtype = np.uint8 if session.get_inputs()[0].type == "tensor(uint8)" else np.float32

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """features (B, T, in_dim), in_dim 1 for waves, or images (B, in_dim, H, W) -> (B, dim) raw
        embeddings.
        """
        values = features.float().cpu().numpy().astype(self.dtype, copy=False)
        values = values[..., 0] if len(self.session.get_inputs()[0].shape) == 2 else values
        groups = values[:, None] if self.one_by_one else [values]
        rows = [
            torch.from_numpy(self.session.run(None, {self.input: group})[0]).reshape(len(group), -1)
            for group in groups
        ]
        return torch.cat(rows).to(features.device)


def _session(path: Path) -> Any:
    """An ONNX Runtime session: bounded, one file, no custom operators; on CUDA where it is
    available.
    """
    return onnx.open_session(path)


def _try_out(session: Any, path: Path, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """What it gives for one random input of this shape: its (1, dim), or (1, 1, dim)."""
    probe = torch.zeros(shape).normal_(generator=torch.Generator().manual_seed(0)).numpy()
    try:
        one = session.get_inputs()[0]
        given: np.ndarray[Any, Any] = session.run(
            None, {one.name: probe.astype(np.uint8) if one.type == "tensor(uint8)" else probe}
        )[0]
    except Exception as error:  # as above
        raise ValueError(
            f"{path}: it does not run on an input of {shape} ({str(error).splitlines()[0][:200]})"
        ) from None
    if given.ndim not in (2, 3) or given.shape[0] != 1:
        raise ValueError(f"{path}: it gives {given.shape} for one input; (1, dim) is needed")
    return given


def _load_insightface(source: str) -> Loaded:
    pack = insightface.find(source)
    path, (size, mean, std) = pack.recognition, pack.pixels
    session = _session(path)
    one = session.get_inputs()[0]
    if one.type != "tensor(float)" and not (
        one.type == "tensor(uint8)" and pack.stated and (mean, std) == (0.0, 1.0)
    ):
        raise ValueError(
            f"{path}: its input is {one.name} {one.type} {one.shape}; floats are needed"
        )
    network = OnnxNetwork(session, 3, _try_out(session, path, (1, 3, size, size)).size)
    read = partial(images.read, size=(size, size))
    summed = (
        digest([sha256(path), f"{mean} {std}"]) if pack.stated else sha256(path)
    )  # unless a manifest says it, the scale follows from the file
    insightface.say(pack)
    return Loaded(
        TorchEmbedder(PixelScale((mean,) * 3, (std,) * 3, scale=1.0), network).eval(),
        read,
        "face",
        "cosine",
        summed,
        0,
    )


def _load_onnx(path: Path, frontend: Frontend) -> Loaded:
    session, summed = _session(path), sha256(path)
    probe: tuple[int, ...]
    front: nn.Module
    inputs, outputs = session.get_inputs(), session.get_outputs()
    stated = "; ".join(f"{one.name} {one.type} {one.shape}" for one in inputs)
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
        raise ValueError(
            f"{path}: its inputs are {stated}; one of floats is needed, filterbanks (B, T, F) or "
            f"waves (B, S){image}"
        )
    if len(inputs[0].shape) == 2:
        front, in_dim, probe = RawWave(), 1, (1, 16_000)
    else:
        in_dim = inputs[0].shape[2] if isinstance(inputs[0].shape[2], int) else 80
        front, probe = KaldiFbank(num_mels=in_dim, **_KALDI[frontend]), (1, 200, in_dim)
        summed = _summed(path, frontend)
    if isinstance(inputs[0].shape[1], int):
        raise ValueError(
            f"{path}: its input {stated} has a fixed length; export it with a dynamic one, for "
            "recordings of any length"
        )
    return _speaker(
        front, OnnxNetwork(session, in_dim, _try_out(session, path, probe).size), summed
    )
