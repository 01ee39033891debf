"""Models from elsewhere behind the one way of embedding: what MODEL means on the command line.

    load("runs/an4")
        a run directory or a .safetensors checkpoint of Likeness
    load("likeness:voice")
        a model that comes with Likeness (likeness/included.py)
    load("speechbrain:FOLDER")
        a local folder of a SpeechBrain speaker model (hyperparams.yaml, embedding_model.ckpt)
    load("speechbrain:speechbrain/spkrec-ecapa-voxceleb")
        the same from the Hugging Face hub; it is asked only where it is named so
    load("wespeaker:FOLDER_OR_FILE.pt")
        a WeSpeaker checkpoint (avg_model.pt): ResNet, ECAPA-TDNN, CAM++ or x-vector
    load("insightface:FILE_OR_FOLDER")
        a face network of InsightFace: a recognition .onnx file, or an unpacked pack such as
        buffalo_l; or any face network over images of one size, whose size and pixels can be stated:
        insightface:FILE.onnx@size=112x96,mean=127.5,std=128,order=bgr (likeness/models/pixels.py)
    load("insightface:FILE.pth")
        weights of arcface_torch (backbone.pth), of an IResNet from r18 to r200
    load("hub:FOLDER_OR_ID")
        a network of Hugging Face's transformers: a folder with config.json and safetensors, or an
        id such as hub:facebook/dinov2-small, perhaps with @REVISION, which the hub is asked for
    load("own.py"), load("own.py:NAME")
        a network that a Python file of the user defines (model_file.py); the file is run
    load("model.onnx")
        a file of `likeness export`, of any modality; otherwise a speaker network that takes
        filterbanks (B, T, F) or waves (B, S) and gives (B, dim)

The weights that InsightFace publishes are for non-commercial research only. Loading them prints
that. Nothing in these files is executed but own.py, which is the user's. Parts of other packages in
a checkpoint are imported where `trust` names the package (likeness/models/trust.py). SpeechBrain
runs its YAML as code (HyperPyYAML's !new: and !apply:); here it is read as plain data, and state
dicts are read by toolkit.backbones.pickled. Front-ends come from the modality by name, as with a
checkpoint. Models of other projects are scored by the cosine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from eval.formats.provenance import digest, sha256
from eval.progress import step
from eval.types import check_counts
from likeness.included import resolved
from likeness.models import arcface_torch, hub, insightface, model_file, speechbrain, wespeaker
from likeness.models import onnx as exported
from likeness.models.run import load_model
from modalities.face import align, images
from modalities.speaker import audio, long
from modalities.speaker.features import KaldiFbank, RawWave
from modalities.speaker.speechbrain_fbank import SpeechBrainFbank
from toolkit.backbones.weights import read_weights
from toolkit.console import console
from toolkit.data.pixels import INSIGHTFACE, PixelScale
from toolkit.models import onnx
from toolkit.models.checkpoint import Loaded
from toolkit.models.embed import TorchEmbedder
from toolkit.models.parts import describe

# What a reading in parts takes over from the model's own.
_OF_EVERY_READING = ("rate_hz", "min_seconds", "needs_hz", "level_dbfs")
Frontend = Literal["wespeaker", "3dspeaker"]
# These are WESPEAKER_FBANK and THREED_SPEAKER_FBANK of modalities/speaker/features.py without
# dither, which is for training only.
_KALDI: dict[str, dict[str, Any]] = {
    "wespeaker": {"window": "hamming", "scale": 32768.0},
    "3dspeaker": {"window": "povey", "scale": 1.0},
}


@step("loading the model")
def load(model: str, *, frontend: Frontend = "wespeaker", trust: Sequence[str] = ()) -> Loaded:
    """Load the model that a text names, with its reading, modality, similarity and digest.

    A face model reads aligned crops; `load_to_embed` and `with_detector` make it read photographs.

    Args:
        model: One of the forms at the top of this file.
        frontend: What an .onnx network over filterbanks or a `wespeaker:` state dict was trained
            with: "wespeaker" (Hamming window, int16 scale) or "3dspeaker" (Povey window, [-1, 1]).
            Neither file states it. Other kinds of models know their front-end.
        trust: The packages and Python files of others that may be imported for parts of a
            checkpoint or an exported model.

    Raises:
        ValueError: The file is of another kind, its sizes contradict its weights, or its
            architecture is not known.
        ImportError: A package is missing; the message names the extra to install.
    """
    if frontend not in get_args(Frontend):
        raise ValueError(f"front-end {frontend!r}: must be one of {', '.join(get_args(Frontend))}")
    model = resolved(model)
    if named := model_file.named(model):
        return model_file.load(*named)
    kind, colon, source = model.partition(":")
    if colon and kind == "speechbrain":
        return _load_speechbrain(source)
    if colon and kind == "wespeaker":
        return _load_wespeaker(Path(source), frontend)
    if colon and kind == "hub":
        return hub.load(source)
    if colon and kind == "insightface":
        return _load_insightface(source)
    if colon and kind == "timm":
        raise ValueError(
            f"model {model!r}: networks of timm are not read by name; give hub:FOLDER_OR_ID for a "
            "network of transformers, or own.py, a model file that calls timm.create_model"
        )
    if colon and kind.isidentifier() and len(kind) > 1 and not Path(model).exists():
        raise ValueError(
            f"model {model!r}: there is no kind {kind!r}; write speechbrain:SOURCE, "
            "wespeaker:FILE.pt, insightface:PATH, hub:FOLDER_OR_ID, FILE.onnx, FILE.py, a "
            "checkpoint or a run directory"
        )
    if Path(model).suffix.lower() == ".onnx":
        return exported.load(Path(model), trust=trust) or _load_onnx(Path(model), frontend)
    return load_model(Path(model), trust=trust)


def load_to_embed(
    model: str,
    *,
    detector: Path | Literal[False] | None = None,
    frontend: Frontend = "wespeaker",
    trust: Sequence[str] = (),
    takes_heads: bool = False,
) -> Loaded:
    """Load the model that a text names, reading what people have: recordings, images, photographs.

    `insightface:FOLDER` takes photographs, which are aligned by the detector of the pack. Every
    other face model takes aligned crops, unless a detector is named.

    Args:
        model: One of the forms at the top of this file.
        detector: An SCRFD or YuNet .onnx file. None takes that of the pack; False takes none.
        frontend: As for `load`.
        trust: As for `load`.
        takes_heads: Whether a head, which takes embeddings, is let pass.

    Raises:
        ValueError: As `load` and `with_detector`; or the model is a head.
        ImportError: As `load`.
    """
    loaded = load(model, frontend=frontend, trust=trust)
    if loaded.modality == "embedding" and not takes_heads:
        raise ValueError(
            f"{model}: this is a head, which takes the embeddings of a model; join it with that "
            f"model, likeness join MODEL {model} --out RUN, and use the result"
        )
    if detector is False:
        return loaded
    return with_detector(loaded, find_detector(model) if detector is None else detector)


def in_parts(
    model: Loaded,
    *,
    crops: int = 0,
    crop_seconds: float = 4.0,
    chunk_seconds: float = 0.0,
    only_speech: bool = False,
) -> Loaded:
    """Return the model reading its items in crops, in chunks, or without their pauses.

    How it reads them is in modalities/speaker/long.py. The model's `settings` state it in the
    metadata of its embeddings.

    Args:
        model: A speaker model.
        crops: The number of crops of each item, whose embeddings are averaged; 0 for none.
        crop_seconds: The length of a crop.
        chunk_seconds: The length of the chunks that a long recording is cut into; 0 for none.
        only_speech: Whether pauses are left out, by their energy.

    Raises:
        ValueError: The model's modality has no such reading, or the settings exclude each other or
            are too small.
    """
    if not (crops or chunk_seconds or only_speech):
        return model
    if model.modality != "speaker":
        raise ValueError(
            "crops, chunks and only_speech are for speech; this is a model of modality "
            f"{model.modality!r}: leave them out"
        )
    refuse_other_reading(model, "crops, chunks and only_speech")
    if crops and chunk_seconds:
        raise ValueError(
            f"crops {crops} and chunk_seconds {chunk_seconds:g} exclude each other; choose one of "
            "them"
        )
    check_counts("crops", [crops], least=0)
    if not 0.1 <= crop_seconds < math.inf:
        raise ValueError(f"crop_seconds {crop_seconds:g}: crops of at least 0.1 s are allowed")
    if chunk_seconds and not 1.0 <= chunk_seconds < math.inf:
        raise ValueError(
            f"chunk_seconds {chunk_seconds:g}: chunks of at least 1 s are allowed, or 0 for none"
        )
    bound = model.read.keywords if isinstance(model.read, partial) else {}
    kept = {key: value for key, value in bound.items() if key in _OF_EVERY_READING}
    read = partial(
        long.read,
        crops=crops,
        crop_seconds=crop_seconds,
        chunk_seconds=chunk_seconds,
        only_speech=only_speech,
        **kept,
    )
    settings = {}
    if crops:
        settings["crops"] = f"{crops} x {crop_seconds:g} s, mean"
    if chunk_seconds:
        settings["chunks"] = f"at most {chunk_seconds:g} s, mean by length"
    if only_speech:
        settings["pauses"] = "left out by energy"
    return replace(model, read=read, settings={**model.settings, **settings})


def find_detector(model: str) -> Path | None:
    """Return the detector of a pack of InsightFace, `insightface:FOLDER`.

    None for every other MODEL, also for one file of a pack.
    """
    kind, _, source = model.partition(":")
    if kind != "insightface" or arcface_torch.is_state_dict(source):
        return None
    return insightface.find(source).detector


def aligned_size(model: Loaded) -> tuple[int, int]:
    """Return height and width of the faces that a model reads, in pixels.

    Raises:
        ValueError: Faces cannot be aligned to this size. It is raised before any work is done.
    """
    bound = model.read.keywords if isinstance(model.read, partial) else {}
    size = bound.get("size", (112, 112))  # images.read's own default
    # modalities.face.align.read takes a height alone, or a height and a width.
    height, width = (size, bound.get("width") or size) if isinstance(size, int) else size
    try:
        align.check(height, width)
    except ValueError:
        raise ValueError(
            f"the model takes faces of {height} x {width}, but faces are aligned to heights that "
            "are multiples of 112 or 128, and to widths that are equal to the height or less by an "
            "even number, such as 112 x 112, 112 x 96 (SphereFace) and 128 x 128; take such a "
            "model, or give this one crops that fit it"
        ) from None
    return height, width


def with_detector(model: Loaded, detector: Path | None) -> Loaded:
    """Return the face model reading photographs, in which a detector finds faces.

    It takes the face that InsightFace takes, the largest near the centre, and aligns it to the
    model's size (modalities.face.align). The model's `settings` state it.

    Args:
        model: A face model.
        detector: An SCRFD or YuNet .onnx file; None gives the model as it is.

    Raises:
        ValueError: The model is of another modality or takes faces that cannot be aligned, or the
            file is no detector that is known.
    """
    if detector is None:
        return model
    if model.modality != "face":
        raise ValueError(
            f"--detector {detector} finds faces, but this is a model of modality "
            f"{model.modality!r}: leave it out"
        )
    refuse_other_reading(model, f"--detector {detector}")
    insightface.check_detector(detector)
    height, width = aligned_size(model)
    read = partial(align.read, detector=str(detector), size=height, width=width, choose="central")
    faces = f"central, aligned to {height} x {width}, detector {sha256(detector)[:16]}"
    return replace(model, read=read, settings={**model.settings, "faces": faces})


def refuse_other_reading(model: Loaded, option: str) -> None:
    """Refuse an option that would replace a reading which is not of a modality.

    What the option reads would not be what the network was trained on, and nobody would see it.

    Args:
        model: The model.
        option: What the error calls the option.

    Raises:
        ValueError: The model has such a reading; the function is named.
    """
    function = model.read.func if isinstance(model.read, partial) else model.read
    module = str(getattr(function, "__module__", ""))
    if module.partition(".")[0] != "modalities":
        raise ValueError(
            f"{option}: the model reads its items by {module}.{getattr(function, '__name__', '')}, "
            "which this option would replace; leave it out, or do its work in that function"
        )


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
        raise ValueError(
            f"{path} does not exist; give the folder or the file of the model's weights"
        )
    return read_weights(path)


def _load_speechbrain(source: str) -> Loaded:
    yaml, weights = speechbrain.find_files(source)
    settings, backbone = speechbrain.read_settings(yaml)
    speechbrain.fill(backbone.network, _load_state(weights), str(weights))
    summed = digest([sha256(yaml), sha256(weights)])
    rate_hz = settings.get("rate_hz", 16_000)
    return _speaker(SpeechBrainFbank(**settings), backbone, summed, rate_hz=rate_hz)


def _load_wespeaker(path: Path, frontend: Frontend) -> Loaded:
    file = path / "avg_model.pt" if path.is_dir() else path
    backbone, num_mels, part = wespeaker.network(file, _load_state(file))
    fbank = partial(KaldiFbank, num_mels=num_mels, **_KALDI[frontend])
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
        raise ValueError(
            f"{path}: it does not run on an input of {shape} ({str(error).splitlines()[0][:200]})"
        ) from None
    if z.ndim not in (2, 3) or z.shape[0] != 1:
        raise ValueError(f"{path}: it gives {z.shape} for one input; (1, dim) is needed")
    return z


def _load_insightface(source: str) -> Loaded:
    if arcface_torch.is_state_dict(source):
        return _load_arcface_torch(Path(source))
    pack = insightface.find(source)
    path, (size, mean, std, bgr) = pack.recognition, pack.pixels
    session = onnx.open_session(path)
    if session.text is not None:
        raise ValueError(
            f"{path}: this is a file of likeness export, whose graph scales the pixels itself; "
            f"give it without insightface:, as {path}"
        )
    value = session.get_inputs()[0]
    takes_bytes = value.type == "tensor(uint8)" and pack.stated and (mean, std) == (0.0, 1.0)
    if value.type != "tensor(float)" and not takes_bytes:
        raise ValueError(
            f"{path}: its input is {value.name} {value.type} {value.shape}; floats are needed"
        )
    network = OnnxNetwork(session, 3, _try_out(session, path, (1, 3, *size)).size)
    read = partial(images.read, size=size)
    # Unless a manifest or the user states the pixels, they follow from the file, whose sum is then
    # enough.
    pixels = f"{mean} {std}" if pack.stated else pack.named
    summed = digest([sha256(path), pixels]) if pixels else sha256(path)
    insightface.say(pack)
    frontend = PixelScale((mean,) * 3, (std,) * 3, scale=1.0, bgr=bgr)
    return Loaded(TorchEmbedder(frontend, network).eval(), read, "face", "cosine", summed, 0)


def _load_arcface_torch(path: Path) -> Loaded:
    network, summed = arcface_torch.read_network(path), sha256(path)
    size = network.image_size
    console.print(f"{path}: {size} x {size} RGB, (x - 127.5) / 127.5; {insightface.LICENCE}")
    read = partial(images.read, size=(size, size))
    return Loaded(TorchEmbedder(INSIGHTFACE(), network).eval(), read, "face", "cosine", summed, 0)


def _load_onnx(path: Path, frontend: Frontend) -> Loaded:
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
        raise ValueError(
            f"{path}: its inputs are {stated}; one input of floats is needed, filterbanks "
            f"(B, T, F) or waves (B, S){image}"
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
    network = OnnxNetwork(session, in_dim, _try_out(session, path, probe).size)
    return _speaker(front, network, summed)
